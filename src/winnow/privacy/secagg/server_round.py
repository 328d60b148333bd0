"""One round of secure aggregation at the server: what is summed up, with which weights, and what becomes of the sum."""

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from winnow.core import Federation, Population, Reply
from winnow.learn.aggregation import LinearFold, mean_weight
from winnow.learn.collect import RoundContext
from winnow.learn.reply_checks import ExpectedReply, Rejection, check_replies, unexpected_fault
from winnow.learn.stack import ModelState
from winnow.privacy.secagg.encoding import DecodedSum, EncodingParameters
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.modular_vectors import VectorGroup
from winnow.privacy.secagg.pairwise_server import SecureSum
from winnow.privacy.secagg.protocol_runner import ProtocolRunner
from winnow.privacy.secagg.protocol_tasks import UPDATE_LAYOUT, carried
from winnow.privacy.secagg.scalar_quantisation import FINE_STEP
from winnow.privacy.secagg.session_terms import SESSION_BYTES
from winnow.privacy.secagg.update_layout import (
    MODEL,
    UpdateLayout,
    layout_mismatch,
    mean_update,
    public_update,
    sorted_parts,
    weighted_update,
)

if TYPE_CHECKING:
    from winnow.privacy.secagg.collect import SecureAggregation


@dataclass(frozen=True, kw_only=True)
class SecureRoundResult:
    """What came out of a round: nothing was folded if it had to be abandoned."""

    answered: list[Reply]
    refused: list[Rejection]
    next_round_state: Mapping[str, Any]
    aggregated: list[Reply] = field(default_factory=list)
    parts: Mapping[str, ModelState] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class SecureRound:
    """A cohort that has trained, whose updates are all of one form."""

    def __init__(
        self,
        settings: "SecureAggregation",
        fold: LinearFold,
        context: RoundContext,
        held: "TrainedCohort",
        population: Population,
    ) -> None:
        self._settings, self._fold, self._context, self._form = settings, fold, context, held.form
        self._of_client = {reply.task.client: reply for reply in held.cohort}
        self._population = population
        weights = {client: fold.weight_of(client, context.counts[client]) for client in self._of_client}
        heaviest = (fold.weight_of(client, 1) for client in range(len(population)))
        self._unit = max(heaviest if settings.encoding.private else weights.values(), default=1.0)
        self._weights = {client: weight_share(weight, self._unit) for client, weight in weights.items()}

    def sum_up(self, federation: Federation) -> SecureRoundResult:
        """Hold the conversation and fold the sum; or abandon the round, and tell everybody in it why."""
        if not self._of_client:
            return SecureRoundResult(answered=[], refused=[], next_round_state=self._context.state)
        talk = self._conversation(federation)
        try:
            outcome = self._talk(talk)
            decoded = self._decoded(talk.parameters, outcome)
        except ProtocolError as error:
            reason = f"the round was abandoned: {error}"
            told = [Rejection(client=client, reason=reason) for client in self._of_client]
            return SecureRoundResult(
                answered=talk.answered, refused=talk.refused + told, next_round_state=self._context.state
            )
        sums = [*decoded.sums[:-1], np.array(self._divisor(float(decoded.sums[-1])))]
        parts, weight = mean_update(self._form, sums, self._context.expected.parts[MODEL], len(outcome.survivors))
        self._fold.add_mean(parts.pop(MODEL), weight * self._unit)
        following = self._settings.encoding.refresh(self._form, talk.parameters, decoded, talk.terms.round + 1)
        return SecureRoundResult(
            answered=talk.answered,
            refused=talk.refused,
            next_round_state=following.as_arrays(),
            aggregated=[self._of_client[client] for client in outcome.survivors],
            parts=parts,
            metrics=_known({"clipped": decoded.clipped, "overflowed": decoded.overflowed}),
        )

    def _divisor(self, weight: float) -> float:
        """What a sum is divided by: the weight of those in it; or, where noise hides clients, what as many clients as
        a round selects weigh on average. That is public, and the same whoever came.
        """
        if not self._settings.encoding.private:
            return weight
        return self._context.selected * mean_weight(self._fold, self._population) / self._unit

    def _conversation(self, federation: Federation) -> ProtocolRunner:
        task = next(iter(self._of_client.values())).task
        return ProtocolRunner(
            federation=federation,
            terms=self._settings.terms(os.urandom(SESSION_BYTES), task.round),
            version=task.version,
            weights=self._weights,
            parameters=self._parameters(task.round),
            model=self._context.expected.parts[MODEL],
            weighs=self._context.byte_scale,
        )

    def _parameters(self, round: int) -> EncodingParameters:
        """Those that the last round left; new ones may be made of the server's own samples instead."""
        encoding, context = self._settings.encoding, self._context
        if context.state:
            parameters = EncodingParameters.of(context.state)
        else:
            parameters = encoding.first(self._form, public_update(self._form, context.expected.parts), round)
        if context.emulated_update is None or parameters.version < round:
            return parameters
        weight = sum(self._weights.values()) / len(self._weights)
        update = weighted_update(sorted_parts(context.emulated_update()), context.expected.parts[MODEL], weight)
        return encoding.emulated(self._form, update, round)

    def _talk(self, talk: ProtocolRunner) -> SecureSum:
        members, needed = len(self._of_client), self._settings.min_clients
        if members < needed:
            trained = "1 client has" if members == 1 else f"{members} clients have"
            raise ProtocolError(f"{trained} trained, and a sum takes {needed}")
        settings = self._settings
        if settings.keeper:
            keeper = settings.keeper_for(talk.federation, talk.terms.round, talk.version)
            return talk.kept(keeper, self._space, self._indexed)
        return talk.pairwise(self._space)

    @property
    def _indexed(self) -> int:
        return self._settings.encoding.indexed(self._form)

    def _space(self, members: int) -> VectorGroup:
        return self._settings.encoding.space(self._form, members)

    def _decoded(self, parameters: EncodingParameters, outcome: SecureSum) -> DecodedSum:
        decoded = self._settings.encoding.decode(
            self._form, outcome.total, parameters, outcome.members, len(outcome.survivors)
        )
        if decoded.overflowed > self._settings.max_overflow_share:
            raise ProtocolError(
                f"{100 * decoded.overflowed:.3g} % of the sums overflowed, and collect.max_overflow_share allows "
                f"{100 * self._settings.max_overflow_share:.3g} %; raise the encoding's margin"
            )
        return decoded


@dataclass(frozen=True, kw_only=True)
class TrainedCohort:
    """Clients that have trained and hold updates of one `form` back; who was refused, and all that was answered."""

    cohort: list[Reply]
    form: UpdateLayout
    refused: list[Rejection]
    answered: list[Reply]


def train_and_hold(federation: Federation, context: RoundContext) -> TrainedCohort:
    """Have clients train. Their updates stay where they are, so that nothing is uploaded yet."""
    trained = [replace(task, work=replace(task.work, upload_bytes=0)) for task in context.tasks]
    with federation.dispatch(trained, context.until) as exchange:
        outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
    held_back = dataclasses.replace(context.expected, parts={}, reply_parts=(UPDATE_LAYOUT,))
    sound, refused, answered = check_replies(outcomes, held_back)
    cohort, form = with_common_layout(sound, refused, context.expected)
    return TrainedCohort(cohort=cohort, form=form, refused=refused, answered=answered)


def with_common_layout(
    sound: Sequence[Reply], refused: list[Rejection], expected: ExpectedReply
) -> tuple[list[Reply], UpdateLayout]:
    """The replies whose updates have the form that is expected and that most of them have; others are refused."""
    forms: dict[int, UpdateLayout] = {}
    for reply in sound:
        try:
            form = UpdateLayout.read(carried(reply.payload, "form", UPDATE_LAYOUT))
            fault = layout_mismatch(form, expected.parts, expected.reply_parts)
        except ProtocolError as error:
            fault = str(error)
        except Exception as error:
            fault = unexpected_fault("cannot read the layout of its update", reply.task.client, error)
        if fault is None:
            forms[reply.task.client] = form
        else:
            refused.append(Rejection(client=reply.task.client, reason=fault))
    if not forms:
        return [], UpdateLayout(())
    ((common, _),) = Counter(forms.values()).most_common(1)
    odd = [client for client, form in forms.items() if form != common]
    reason = "the update's layout differs from that of most clients"
    refused += [Rejection(client=client, reason=reason) for client in odd]
    return [_without_form(reply) for reply in sound if forms.get(reply.task.client) == common], common


def _without_form(reply: Reply) -> Reply:
    return replace(reply, payload={name: part for name, part in reply.payload.items() if name != UPDATE_LAYOUT})


def weight_share(weight: float, unit: float) -> float:
    """What a client counts, as a share of the largest that can be sent exactly."""
    return max(1, round(weight / unit / FINE_STEP)) * FINE_STEP


def _known(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: figure for name, figure in figures.items() if figure is not None}
