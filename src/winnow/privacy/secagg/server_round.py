"""One round of secure aggregation at the server: weights, parameters, the protocol, and how the sum is aggregated."""

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
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.modular_vectors import VectorGroup
from winnow.privacy.secagg.pairwise_server import SecureSum
from winnow.privacy.secagg.protocol_tasks import UPDATE_LAYOUT, payload_bytes
from winnow.privacy.secagg.scalar_quantisation import FINE_STEP
from winnow.privacy.secagg.server_session import ProtocolRunner
from winnow.privacy.secagg.session_terms import SESSION_BYTES
from winnow.privacy.secagg.update_encoding_interface import DecodedSum, EncodingParameters
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
    from winnow.privacy.secagg.secure_collect import SecureAggregation


@dataclass(frozen=True, kw_only=True)
class SecureRoundResult:
    """The result of a round; nothing was aggregated if it was abandoned."""

    answered: list[Reply]
    refused: list[Rejection]
    next_round_state: Mapping[str, Any]
    aggregated: list[Reply] = field(default_factory=list)
    parts: Mapping[str, ModelState] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class SecureRound:
    """A cohort that has trained, whose updates all have the same layout."""

    def __init__(
        self,
        settings: "SecureAggregation",
        fold: LinearFold,
        context: RoundContext,
        held: "TrainedCohort",
        population: Population,
    ) -> None:
        self._settings, self._fold, self._context, self._layout = settings, fold, context, held.layout
        self._of_client = {reply.task.client: reply for reply in held.cohort}
        self._population = population
        weights = {client: fold.weight_of(client, context.counts[client]) for client in self._of_client}
        heaviest = (fold.weight_of(client, 1) for client in range(len(population)))
        self._unit = max(heaviest if settings.encoding.private else weights.values(), default=1.0)
        self._weights = {client: weight_share(weight, self._unit) for client, weight in weights.items()}

    def sum_up(self, federation: Federation) -> SecureRoundResult:
        """Run the protocol and aggregate the sum; or abandon the round, with a rejection for every client in it."""
        if not self._of_client:
            return SecureRoundResult(answered=[], refused=[], next_round_state=self._context.state)
        runner = self._protocol_runner(federation)
        try:
            outcome = self._run_protocol(runner)
            decoded = self._decoded(runner.parameters, outcome)
        except ProtocolError as error:
            reason = f"the round was abandoned: {error}"
            abandoned = [Rejection(client=client, reason=reason) for client in self._of_client]
            return SecureRoundResult(
                answered=runner.answered, refused=runner.refused + abandoned, next_round_state=self._context.state
            )
        sums = [*decoded.sums[:-1], np.array(self._divisor(float(decoded.sums[-1])))]
        parts, weight = mean_update(self._layout, sums, self._context.expected.parts[MODEL], len(outcome.survivors))
        self._fold.add_mean(parts.pop(MODEL), weight * self._unit)
        following = self._settings.encoding.refresh(self._layout, runner.parameters, decoded, runner.terms.round + 1)
        return SecureRoundResult(
            answered=runner.answered,
            refused=runner.refused,
            next_round_state=following.as_arrays(),
            aggregated=[self._of_client[client] for client in outcome.survivors],
            parts=parts,
            metrics=_known({"clipped": decoded.clipped, "overflowed": decoded.overflowed}),
        )

    def _divisor(self, weight: float) -> float:
        """What a sum is divided by: the weight of the clients in it; or, where noise hides clients, the average weight
        of as many clients as a round selects. That is public, and does not depend on who took part.
        """
        if not self._settings.encoding.private:
            return weight
        return self._context.selected * mean_weight(self._fold, self._population) / self._unit

    def _protocol_runner(self, federation: Federation) -> ProtocolRunner:
        task = next(iter(self._of_client.values())).task
        return ProtocolRunner(
            federation=federation,
            terms=self._settings.terms(os.urandom(SESSION_BYTES), task.round),
            version=task.version,
            weights=self._weights,
            parameters=self._parameters(task.round),
            model=self._context.expected.parts[MODEL],
            byte_scale=self._context.byte_scale,
        )

    def _parameters(self, round: int) -> EncodingParameters:
        """Those that the last round determined; or new ones, from an update on the server's own samples."""
        encoding, context = self._settings.encoding, self._context
        if context.state:
            parameters = EncodingParameters.of(context.state)
        else:
            parameters = encoding.first(self._layout, public_update(self._layout, context.expected.parts), round)
        if context.emulated_update is None or parameters.version < round:
            return parameters
        weight = sum(self._weights.values()) / len(self._weights)
        update = weighted_update(sorted_parts(context.emulated_update()), context.expected.parts[MODEL], weight)
        return encoding.emulated(self._layout, update, round)

    def _run_protocol(self, runner: ProtocolRunner) -> SecureSum:
        members, needed = len(self._of_client), self._settings.min_clients
        if members < needed:
            trained = "1 client has" if members == 1 else f"{members} clients have"
            raise ProtocolError(f"{trained} trained, and a sum takes {needed}")
        settings = self._settings
        if settings.keeper:
            keeper = settings.keeper_for(runner.federation, runner.terms.round, runner.version)
            return runner.sum_with_keeper(keeper, self._group, self._indexed)
        return runner.sum_pairwise(self._group)

    @property
    def _indexed(self) -> int:
        return self._settings.encoding.indexed(self._layout)

    def _group(self, members: int) -> VectorGroup:
        return self._settings.encoding.group(self._layout, members)

    def _decoded(self, parameters: EncodingParameters, outcome: SecureSum) -> DecodedSum:
        decoded = self._settings.encoding.decode(
            self._layout, outcome.total, parameters, outcome.members, len(outcome.survivors)
        )
        if decoded.overflowed > self._settings.max_overflow_share:
            raise ProtocolError(
                f"{100 * decoded.overflowed:.3g} % of the sums overflowed, and collect.max_overflow_share allows "
                f"{100 * self._settings.max_overflow_share:.3g} %; raise the encoding's margin"
            )
        return decoded


@dataclass(frozen=True, kw_only=True)
class TrainedCohort:
    """Clients that have trained and hold updates with a common `layout`; the rejections, and all replies."""

    cohort: list[Reply]
    layout: UpdateLayout
    refused: list[Rejection]
    answered: list[Reply]


def train_and_hold(federation: Federation, context: RoundContext) -> TrainedCohort:
    """Have clients train. Their updates stay at their sites, so nothing is uploaded yet."""
    trained = [replace(task, work=replace(task.work, upload_bytes=0)) for task in context.tasks]
    with federation.dispatch(trained, context.until) as exchange:
        outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
    held_back = dataclasses.replace(context.expected, parts={}, reply_parts=(UPDATE_LAYOUT,))
    sound, refused, answered = check_replies(outcomes, held_back)
    cohort, layout = with_common_layout(sound, refused, context.expected)
    return TrainedCohort(cohort=cohort, layout=layout, refused=refused, answered=answered)


def with_common_layout(
    sound: Sequence[Reply], refused: list[Rejection], expected: ExpectedReply
) -> tuple[list[Reply], UpdateLayout]:
    """The replies whose updates have the expected layout that most of them have; others are refused."""
    layouts: dict[int, UpdateLayout] = {}
    for reply in sound:
        try:
            layout = UpdateLayout.read(payload_bytes(reply.payload, "layout", UPDATE_LAYOUT))
            fault = layout_mismatch(layout, expected.parts, expected.reply_parts)
        except ProtocolError as error:
            fault = str(error)
        except Exception as error:
            fault = unexpected_fault("cannot read the layout of its update", reply.task.client, error)
        if fault is None:
            layouts[reply.task.client] = layout
        else:
            refused.append(Rejection(client=reply.task.client, reason=fault))
    if not layouts:
        return [], UpdateLayout(())
    ((common, _),) = Counter(layouts.values()).most_common(1)
    odd = [client for client, layout in layouts.items() if layout != common]
    reason = "the update's layout differs from that of most clients"
    refused += [Rejection(client=client, reason=reason) for client in odd]
    return [_without_layout(reply) for reply in sound if layouts.get(reply.task.client) == common], common


def _without_layout(reply: Reply) -> Reply:
    return replace(reply, payload={name: part for name, part in reply.payload.items() if name != UPDATE_LAYOUT})


def weight_share(weight: float, unit: float) -> float:
    """A client's weight as a share of the largest, rounded to what can be sent exactly."""
    return max(1, round(weight / unit / FINE_STEP)) * FINE_STEP


def _known(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: figure for name, figure in figures.items() if figure is not None}
