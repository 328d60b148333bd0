"""One round of secure aggregation at the server: what is summed up, with which weights, and what becomes of the sum."""

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from winnow.core import Federation, Population, Reply, Task, Until
from winnow.learn.aggregate import LinearFold, mean_weight
from winnow.learn.replies import Expected, Refusal, sift, unexpected
from winnow.learn.stack import ModelState
from winnow.privacy.secure.conversation import Conversation
from winnow.privacy.secure.encoding import Decoded, Parameters
from winnow.privacy.secure.form import MODEL, Form, departures, means, mismatch, ordered, public_values
from winnow.privacy.secure.group import Space
from winnow.privacy.secure.refusal import RefusedError
from winnow.privacy.secure.scalar import FINE_STEP
from winnow.privacy.secure.steps import HELD, carried
from winnow.privacy.secure.tally import Outcome
from winnow.privacy.secure.terms import SESSION_BYTES

if TYPE_CHECKING:
    from winnow.privacy.secure.collect import Secure


@dataclass(frozen=True, kw_only=True)
class Summed:
    """What came out of a round: nothing was folded if it had to be abandoned."""

    answered: list[Reply]
    refused: list[Refusal]
    left: Mapping[str, Any]
    folded: list[Reply] = field(default_factory=list)
    parts: Mapping[str, ModelState] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


class SecureRound:
    """A cohort that has trained, whose updates are all of one form."""

    def __init__(
        self,
        settings: "Secure",
        fold: LinearFold,
        expected: Expected,
        form: Form,
        cohort: Sequence[Reply],
        counts: Mapping[int, int],
        population: Population,
    ) -> None:
        self._settings, self._fold, self._expected, self._form = settings, fold, expected, form
        self._of_client = {reply.task.client: reply for reply in cohort}
        self._population = population
        weights = {client: fold.weight_of(client, counts[client]) for client in self._of_client}
        heaviest = (fold.weight_of(client, 1) for client in range(len(population)))
        self._unit = max(heaviest if settings.encoding.private else weights.values(), default=1.0)
        self._weights = {client: exact_share(weight, self._unit) for client, weight in weights.items()}

    def sum_up(self, federation: Federation) -> Summed:
        """Hold the conversation and fold the sum; or abandon the round, and tell everybody in it why."""
        if not self._of_client:
            return Summed(answered=[], refused=[], left=self._expected.collected)
        talk = self._conversation(federation)
        try:
            outcome = self._talk(talk)
            decoded = self._decoded(talk.parameters, outcome)
        except RefusedError as error:
            reason = f"the round was abandoned: {error}"
            told = [Refusal(client=client, reason=reason) for client in self._of_client]
            return Summed(answered=talk.answered, refused=talk.refused + told, left=self._expected.collected)
        sums = [*decoded.sums[:-1], np.array(self._divisor(float(decoded.sums[-1])))]
        parts, weight = means(self._form, sums, self._expected.parts[MODEL], len(outcome.survivors))
        self._fold.add_mean(parts.pop(MODEL), weight * self._unit)
        following = self._settings.encoding.refresh(self._form, talk.parameters, decoded, talk.terms.round + 1)
        return Summed(
            answered=talk.answered,
            refused=talk.refused,
            left=following.as_arrays(),
            folded=[self._of_client[client] for client in outcome.survivors],
            parts=parts,
            measured=_known({"clipped": decoded.clipped, "overflowed": decoded.overflowed}),
        )

    def _divisor(self, weight: float) -> float:
        """What a sum is divided by: the weight of those in it; or, where noise hides clients, what as many clients as
        a round invites weigh on average. That is public, and the same whoever came.
        """
        if not self._settings.encoding.private:
            return weight
        return self._expected.invited * mean_weight(self._fold, self._population) / self._unit

    def _conversation(self, federation: Federation) -> Conversation:
        task = next(iter(self._of_client.values())).task
        return Conversation(
            federation=federation,
            terms=self._settings.terms(os.urandom(SESSION_BYTES), task.round),
            version=task.version,
            weights=self._weights,
            parameters=self._parameters(task.round),
            model=self._expected.parts[MODEL],
            weighs=self._expected.weighs,
        )

    def _parameters(self, round: int) -> Parameters:
        """Those that the last round left; new ones may be made of the server's own samples instead."""
        encoding, expected = self._settings.encoding, self._expected
        if expected.collected:
            parameters = Parameters.of(expected.collected)
        else:
            parameters = encoding.first(self._form, public_values(self._form, expected.parts), round)
        if expected.emulate is None or parameters.version < round:
            return parameters
        weight = sum(self._weights.values()) / len(self._weights)
        update = departures(ordered(expected.emulate()), expected.parts[MODEL], weight)
        return encoding.emulated(self._form, update, round)

    def _talk(self, talk: Conversation) -> Outcome:
        members, needed = len(self._of_client), self._settings.fewest
        if members < needed:
            trained = "1 client has" if members == 1 else f"{members} clients have"
            raise RefusedError(f"{trained} trained, and a sum takes {needed}")
        settings = self._settings
        if settings.keeper:
            keeper = settings.keeper_for(talk.federation, talk.terms.round, talk.version)
            return talk.kept(keeper, self._space, self._indexed)
        return talk.pairwise(self._space)

    @property
    def _indexed(self) -> int:
        return self._settings.encoding.indexed(self._form)

    def _space(self, members: int) -> Space:
        return self._settings.encoding.space(self._form, members)

    def _decoded(self, parameters: Parameters, outcome: Outcome) -> Decoded:
        decoded = self._settings.encoding.decode(
            self._form, outcome.total, parameters, outcome.members, len(outcome.survivors)
        )
        if decoded.overflowed > self._settings.overflow:
            raise RefusedError(
                f"{100 * decoded.overflowed:.3g} % of the sums overflowed, and collect.overflow allows "
                f"{100 * self._settings.overflow:.3g} %; raise the encoding's margin"
            )
        return decoded


@dataclass(frozen=True, kw_only=True)
class HeldBack:
    """Clients that have trained and hold updates of one `form` back; who was refused, and all that was answered."""

    cohort: list[Reply]
    form: Form
    refused: list[Refusal]
    answered: list[Reply]


def train_and_hold(federation: Federation, tasks: Sequence[Task], until: Until, expected: Expected) -> HeldBack:
    """Have clients train. Their updates stay where they are, so that nothing is uploaded yet."""
    trained = [replace(task, work=replace(task.work, upload_bytes=0)) for task in tasks]
    with federation.dispatch(trained, until) as exchange:
        outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
    sound, refused, answered = sift(outcomes, dataclasses.replace(expected, parts={}, carried=(HELD,)))
    cohort, form = alike(sound, refused, expected)
    return HeldBack(cohort=cohort, form=form, refused=refused, answered=answered)


def alike(sound: Sequence[Reply], refused: list[Refusal], expected: Expected) -> tuple[list[Reply], Form]:
    """The replies whose updates have the form that is expected and that most of them have; others are refused."""
    forms: dict[int, Form] = {}
    for reply in sound:
        try:
            form = Form.read(carried(reply.payload, "form", HELD))
            fault = mismatch(form, expected.parts, expected.carried)
        except RefusedError as error:
            fault = str(error)
        except Exception as error:
            fault = unexpected("the form of its update cannot be read", reply.task.client, error)
        if fault is None:
            forms[reply.task.client] = form
        else:
            refused.append(Refusal(client=reply.task.client, reason=fault))
    if not forms:
        return [], Form(())
    ((common, _),) = Counter(forms.values()).most_common(1)
    odd = [client for client, form in forms.items() if form != common]
    refused += [Refusal(client=client, reason="the update has another form than most others") for client in odd]
    return [_without_form(reply) for reply in sound if forms.get(reply.task.client) == common], common


def _without_form(reply: Reply) -> Reply:
    return replace(reply, payload={name: part for name, part in reply.payload.items() if name != HELD})


def exact_share(weight: float, unit: float) -> float:
    """What a client counts, as a share of the largest that can be sent exactly."""
    return max(1, round(weight / unit / FINE_STEP)) * FINE_STEP


def _known(figures: Mapping[str, float | None]) -> dict[str, float]:
    return {name: figure for name, figure in figures.items() if figure is not None}
