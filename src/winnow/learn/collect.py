"""How replies become an aggregate. The plain way hands every sound update to the fold; others may only reveal sums."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from winnow.core import Choice, Federation, Payload, Randomness, Reply, Task, Until
from winnow.learn.aggregation import Contribution, Fold, WeightedSum
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.reply_checks import (
    ExpectedReply,
    Rejection,
    check_replies,
    is_bounded,
    is_bounded_update,
    unexpected_fault,
)
from winnow.learn.stack import ModelState

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class RoundContext:
    """All that the collection of one round needs besides the federation."""

    round: int
    seed: int
    """With the round it names the streams of a simulation's randomness."""
    tasks: Sequence[Task]
    until: Until
    counts: Mapping[int, int]
    """How often each client was drawn."""
    start_fold: Callable[[], Fold]
    expected: ExpectedReply
    selected: int
    """How many clients a round selects by the settings: a number that tells nothing about who was drawn."""
    state: Mapping[str, Any]
    """What the previous round's collection left for this one."""
    emulated_update: Callable[[], Payload] | None
    """Makes an update of this round from the server's own samples, where `Collect.emulates` asks for one."""
    byte_scale: float
    """What a byte of an update counts in a transfer; not 1 where the fleet states a model's size."""


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The aggregated model, the means of other parts, the replies that were aggregated, those whose reports (loss,
    profile) can be trusted though their update may not, those that were rejected, and all whose cost counts.
    """

    model: ModelState
    parts: Mapping[str, ModelState]
    aggregated: list[Reply]
    reported: list[Reply]
    rejected: list[Rejection]
    answered: list[Reply]
    next_round_state: Mapping[str, Any] = field(default_factory=dict)
    """Named arrays for the next round's collection; they are part of a checkpoint."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the collection has to tell of itself."""
    valid_without_replies: bool = False
    """Whether the model stands though nobody was folded: noise is added to an empty sum, too."""


class Collect(Choice, AlgorithmPart):
    """How one round's replies are collected from the selected clients and aggregated."""

    sums_only: ClassVar[bool] = False
    """Whether the server learns sums of updates, and no update."""

    @property
    def min_cohort_size(self) -> int:
        """The fewest clients of a round that it can work with."""
        return 1

    @property
    def emulates(self) -> bool:
        """Whether it wants to know what a client would send that had the server's samples."""
        return False

    def conflict(self, whole: "Algorithm") -> str | None:
        """Whoever gets sums only can serve no rule and no selection that looks at single updates."""
        if not self.sums_only:
            return None
        rule, server, selector, client = (
            getattr(part, "name", "") for part in (whole.aggregate, whole.server, whole.select, whole.client)
        )
        if not whole.aggregate.needs_only_sums:
            fault = f"aggregate.name = {rule!r} needs every update"
            if "client" in whole.aggregate.needs:
                fault, instead = f"{fault} and belongs to client.name = {client!r}", "choose another algorithm"
            else:
                instead = "set aggregate.name to 'partial' or 'full'"
        elif whole.server.sees_updates:
            fault, instead = f"server.name = {server!r} needs every update", "choose another algorithm"
        elif whole.select.sees_updates:
            fault, instead = f"select.name = {selector!r} compares updates", "choose another select.name"
        else:
            return None
        own = getattr(self, "name", "")
        return f"collect.name = \"{own}\" gives sums only, and {fault}; {instead}, or set collect.name to 'plain'"

    def site_extension(self, randomness: Randomness, identities: PartyIdentities | None = None) -> SiteExtension:
        """What sites do besides training: handlers for the protocol's steps, and filters around all others.

        Where each site is a party of its own, `identities` sign for its clients; a simulation needs none.
        """
        return SiteExtension()

    def for_sites(self, first_clients: Mapping[str, int]) -> "Collect":
        """The same for a server whose clients are at sites: by site, the number of its first client."""
        return self

    @property
    def server_has_model(self) -> bool:
        """Whether the server has the model that clients train."""
        return True

    def client_model(self, model: ModelState, kept: Payload) -> ModelState:
        """What a client has of the shared model, given the server's and what the client keeps."""
        return model

    @property
    def third_party(self) -> str | None:
        """The site, by name, whose help it takes besides the clients', if there is one."""
        return None

    @abstractmethod
    def gather(self, federation: Federation, context: RoundContext) -> RoundResult:
        """Run the round's exchanges with the selected clients, and aggregate what they send."""


class PlainCollect(Collect):
    """The server sees every update. Those that are unsound are refused, whatever the algorithm."""

    name: Literal["plain"] = "plain"

    def privacy_text(self) -> str:
        return (
            "plain: the server sees every client's update and must be trusted with what updates reveal about the data. "
            "No extra cost."
        )

    def gather(self, federation: Federation, context: RoundContext) -> RoundResult:
        with federation.dispatch(context.tasks, context.until) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        sound, refused, answered = check_replies(outcomes, context.expected)
        folded, model, parts = fold_finite(
            sound, refused, context.counts, context.start_fold, simulated=federation.simulated
        )
        return RoundResult(
            model=model, parts=parts, aggregated=folded, reported=sound, rejected=refused, answered=answered
        )


def fold_finite(
    sound: list[Reply],
    refused: list[Rejection],
    counts: Mapping[int, int],
    start_fold: Callable[[], Fold],
    *,
    simulated: bool,
) -> tuple[list[Reply], ModelState, Mapping[str, ModelState]]:
    """The replies that could be folded, and what they came to; others are added to the refused.

    One value that is not finite spoils a sum, so looking at the sums is enough until one is spoilt. A rule that leaves
    out outliers (a median) may pass over such a value; then nothing is spoilt, and nobody needs to be refused.
    """
    folding = _Folding(counts, start_fold, simulated)
    outcome, folded = folding.fold(sound), sound
    if isinstance(outcome, str):
        reasons = [folding.fault(reply) for reply in sound]
        refused += [
            Rejection(client=reply.task.client, reason=reason)
            for reply, reason in zip(sound, reasons, strict=True)
            if reason is not None
        ]
        folded = [reply for reply, reason in zip(sound, reasons, strict=True) if reason is None]
        outcome = folding.fold(folded)
    if isinstance(outcome, str):  # each can be folded alone, and all together cannot
        refused += [Rejection(client=reply.task.client, reason=outcome) for reply in folded]
        folded, outcome = [], (start_fold().finish(), {})
    return folded, *outcome


@dataclass(frozen=True)
class _Folding:
    counts: Mapping[int, int]
    start_fold: Callable[[], Fold]
    simulated: bool

    def fold(self, replies: Sequence[Reply]) -> tuple[ModelState, Mapping[str, ModelState]] | str:
        """What the replies come to; or why they come to nothing, of which the last one's is the reason."""
        fold = self.start_fold()
        try:
            model, parts = _fold(replies, self.counts, fold), mean_parts(replies)
        except Exception as error:
            if self.simulated:
                raise
            return unexpected_fault("the update cannot be aggregated", replies[-1].task.client, error)
        sound = all(is_bounded(part) for part in (model, *parts.values()))
        return (model, parts) if sound else "the aggregated model would not be finite with this update"

    def fault(self, reply: Reply) -> str | None:
        """Why this reply alone cannot be folded; None if it can."""
        if not is_bounded_update(reply):
            return "the update contains values that are not finite or too large"
        alone = self.fold([reply])
        return alone if isinstance(alone, str) else None


def _fold(replies: Sequence[Reply], counts: Mapping[int, int], fold: Fold) -> ModelState:
    for reply in replies:
        client = reply.task.client
        if "model" not in reply.payload:  # as was agreed, or it would have been refused
            continue
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
