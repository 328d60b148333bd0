"""How replies become an aggregate. The plain way hands every sound update to the fold; others may only reveal sums."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from winnow.core import Arrays, Choice, Failure, Federation, Outcome, Payload, Reply, Task, Until
from winnow.learn.aggregate import Contribution, Fold, WeightedSum
from winnow.learn.chance import from_the_system
from winnow.learn.matching import AtSites
from winnow.learn.part import Part
from winnow.learn.parties import Identities
from winnow.learn.profile import ReferenceProfile
from winnow.learn.stack import ModelState

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a sound reply looks like: parts (a model) of these shapes, a profile of this length."""

    parts: Payload
    carried: tuple[str, ...]
    """What a trained client's reply must carry."""
    reference: ReferenceProfile | None
    collected: Mapping[str, Any] = field(default_factory=dict)
    """What the last round's collection left for this one."""
    invited: int = 0
    """How many clients a round invites by the settings: a number that tells nothing of who was drawn."""
    noise: Callable[[str], np.random.Generator] = lambda purpose: from_the_system()
    """The server's randomness for a purpose in this round. In a simulation it repeats."""
    emulate: Callable[[], Payload] | None = None
    """An update of this round made of the server's own samples, where `Collect.emulates` asks for one."""
    weighs: float = 1.0
    """What a byte of an update counts in a transfer; another number than 1 where the fleet states a model's size."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    client: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The aggregated model, the means of other parts, the replies that were folded, those whose reports (loss, profile)
    can be trusted though their update may not, those that were refused, and all whose cost counts.
    """

    model: ModelState
    parts: Mapping[str, ModelState]
    folded: list[Reply]
    reported: list[Reply]
    refused: list[Refusal]
    answered: list[Reply]
    left: Mapping[str, Any] = field(default_factory=dict)
    """Named arrays for the next round's collection; they are part of a checkpoint."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What the collection has to tell of itself."""
    regardless: bool = False
    """Whether the model stands though nobody was folded: noise is added to an empty sum, too."""


class Collect(Choice, Part):
    """One round's conversation with the invited, out of which an aggregate comes."""

    sums_only: ClassVar[bool] = False
    """Whether the server learns sums of updates, and no update."""

    @property
    def at_least(self) -> int:
        """How few clients it can work with."""
        return 1

    @property
    def emulates(self) -> bool:
        """Whether it wants to know what a client would send that had the server's samples."""
        return False

    def check(self, clients: int) -> None:
        """Refuse, by name, so many clients if they cannot work."""

    def check_model(self, model: Arrays, members: int) -> None:
        """Refuse, by name, a model whose updates cannot be collected from so many clients in a round."""

    def objection(self, whole: "Algorithm") -> str | None:
        """Whoever gets sums only can serve no rule and no selection that looks at single updates."""
        if not self.sums_only:
            return None
        own, rule, selector = (getattr(part, "name", "") for part in (self, whole.aggregate, whole.select))
        if not whole.aggregate.sums:
            return (
                f'collect.name = "{own}" gives sums only, and aggregate.name = {rule!r} needs every update; '
                "write aggregate.name = 'partial' or 'full', or another collect"
            )
        if whole.select.sees_updates:
            return f'collect.name = "{own}" gives sums only, and select.name = {selector!r} compares updates'
        return None

    def at_sites(self) -> AtSites:
        """What sites do besides: steps of the conversation, and filters that stand around all others."""
        return AtSites()

    def sites(self, identities: Identities) -> AtSites:
        """The same where each site is a party of its own, whose clients sign like that."""
        return self.at_sites()

    def between(self, sites: Mapping[str, int]) -> "Collect":
        """The same for a server whose clients are at these sites; by name, the number of each one's first client."""
        return self

    @property
    def third_party(self) -> str | None:
        """The site, by name, whose help it takes besides the clients', if there is one."""
        return None

    @abstractmethod
    def gather(
        self,
        federation: Federation,
        tasks: Sequence[Task],
        *,
        until: Until,
        counts: Mapping[int, int],
        begin: Callable[[], Fold],
        expected: Expected,
    ) -> Gathered:
        """Hold the conversation; `begin` starts the aggregation, `counts` says how often each client was drawn."""


class InTheClear(Collect):
    """The server sees every update. Those that are unsound are refused, whatever the algorithm."""

    name: Literal["plain"] = "plain"

    def says(self) -> str:
        return (
            "plain: the server sees every client's update, and must be trusted with whatever updates tell of data. It "
            "costs nothing."
        )

    def gather(
        self,
        federation: Federation,
        tasks: Sequence[Task],
        *,
        until: Until,
        counts: Mapping[int, int],
        begin: Callable[[], Fold],
        expected: Expected,
    ) -> Gathered:
        with federation.dispatch(tasks, until) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        sound, refused = sift(outcomes, expected)
        answered = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        folded, model, parts = fold_finite(sound, refused, counts, begin)
        return Gathered(model=model, parts=parts, folded=folded, reported=sound, refused=refused, answered=answered)


def fold_finite(
    sound: list[Reply], refused: list[Refusal], counts: Mapping[int, int], begin: Callable[[], Fold]
) -> tuple[list[Reply], ModelState, Mapping[str, ModelState]]:
    """The replies that could be folded, and what they came to; those that are not finite are added to the refused.

    One value that is not finite spoils a sum, so looking at the sums is enough until one is spoilt. A rule that leaves
    out outliers (a median) may pass over such a value; then nothing is spoilt, and nobody needs to be refused.
    """
    model, parts = _fold(sound, counts, begin), mean_parts(sound)
    if all(finite(part) for part in (model, *parts.values())):
        return sound, model, parts
    kept = [finite_update(reply) for reply in sound]
    refused += [
        Refusal(client=reply.task.client, reason="the update is not finite")
        for reply in compress(sound, map(not_, kept))
    ]
    folded = list(compress(sound, kept))
    return folded, _fold(folded, counts, begin), mean_parts(folded)


def _fold(replies: Sequence[Reply], counts: Mapping[int, int], begin: Callable[[], Fold]) -> ModelState:
    fold = begin()
    for reply in replies:
        client = reply.task.client
        fold.add(Contribution(model=reply.payload["model"], client=client, count=counts[client], metrics=reply.metrics))
    return fold.finish()


def mean_parts(replies: Sequence[Reply]) -> dict[str, ModelState]:
    """What the replies carry besides the model and a profile: averaged, every client counting once."""
    names = [name for name in (replies[0].payload if replies else ()) if name not in ("model", "profile")]
    sums = {name: WeightedSum(dict(replies[0].payload[name])) for name in names}
    for reply in replies:
        for name, total in sums.items():
            total.add(reply.payload[name], 1.0)
    return {name: total.mean() for name, total in sums.items()}


def finite_update(reply: Reply) -> bool:
    """Whether all that a client sends to be folded is."""
    return all(finite(part) for name, part in reply.payload.items() if name != "profile")


def finite(model: Arrays) -> bool:
    """Whether all values are; a norm tells, in one pass over each tensor."""
    real = [tensor for tensor in model.values() if tensor.is_floating_point()]
    return not real or bool(torch.isfinite(torch.stack(list(torch._foreach_norm(real)))).all())


def sift(outcomes: Sequence[Outcome], expected: Expected) -> tuple[list[Reply], list[Refusal]]:
    """Sound replies, and refusals with their reasons."""
    sound, refused = [], []
    for outcome in outcomes:
        fault = _fault(outcome, expected)
        if fault is None and isinstance(outcome, Reply):
            sound.append(outcome)
        else:
            refused.append(Refusal(client=outcome.task.client, reason=fault or ""))
    return sound, refused


def _fault(outcome: Outcome, expected: Expected) -> str | None:
    if isinstance(outcome, Failure):
        return f"failed while {outcome.stage}: {outcome.reason}"
    if outcome.task.name == "train":
        for part in expected.carried:
            if part not in outcome.payload:
                return f"the reply carries no {part}"
    for part, like in expected.parts.items():
        if part in outcome.payload:
            fault = _part_fault(part, outcome.payload[part], like)
            if fault:
                return fault
    if "profile" in outcome.payload and expected.reference is not None:
        return expected.reference.fault(outcome.payload["profile"])
    return None


def _part_fault(part: str, arrays: Arrays, like: Arrays) -> str | None:
    what = "the update" if part == "model" else f"the update's part {part!r}"
    if arrays.keys() != like.keys():
        return f"{what} has other tensors than the model"
    for name, tensor in like.items():
        if arrays[name].shape != tensor.shape or arrays[name].dtype != tensor.dtype:
            return f"{what}'s {name} has the wrong shape or type"
    return None
