"""Secure aggregation as a `collect`: any algorithm that lives on sums becomes private by naming it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

from msgspec.structs import replace as replaced
from pydantic import Field, model_validator

from winnow.core import Federation, Reply, Task, Until
from winnow.learn.aggregate import Fold, LinearFold
from winnow.learn.algorithm import Algorithm
from winnow.learn.collect import Collect, Expected, Gathered, sift
from winnow.learn.matching import AtSites
from winnow.privacy.secure.encoding import Encoding
from winnow.privacy.secure.identity import Identities, authority_here
from winnow.privacy.secure.round import SecureRound, alike
from winnow.privacy.secure.scalar import Scalar
from winnow.privacy.secure.site import SecureSite
from winnow.privacy.secure.steps import HELD
from winnow.privacy.secure.terms import Terms


class Secure(Collect):
    """The server learns the sum of the clients' updates, and no update.

    Out of n clients that have trained, `threshold`·n must stay to the end, and never fewer than `fewest`; otherwise
    nothing is revealed and the round is abandoned. With a `keeper`, a party of its own holds the masks' seeds;
    otherwise the clients do among themselves, all with all (`graph` "complete") or each with some `neighbours`
    ("ring"). No client may make up more than the share `heaviest` of all weights, and no more than the share `overflow`
    of the sums may have overflowed.
    """

    name: Literal["secure"] = "secure"
    encoding: Encoding = Scalar()
    threshold: float = Field(default=2 / 3, gt=0.5, le=1)
    fewest: int = Field(default=3, ge=2)
    graph: Literal["complete", "ring"] = "complete"
    neighbours: int | None = Field(default=None, ge=2, multiple_of=2)
    keeper: bool = False
    heaviest: float = Field(default=0.9, gt=0, le=1)
    overflow: float = Field(default=0.0, ge=0, le=1)
    needs: ClassVar[Mapping[str, str]] = {"pace": "rounds"}

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.keeper and (self.graph == "ring" or self.neighbours is not None):
            raise ValueError("with a keeper no client shares masks with another: leave graph and neighbours out")
        if self.neighbours is not None and self.graph == "complete":
            raise ValueError('neighbours needs graph = "ring"')
        if self.encoding.needs_keeper and not self.keeper:
            code = getattr(self.encoding, "name", "")
            raise ValueError(
                f"encoding.name = {code!r} needs keeper = true: codewords are counted, and pairwise masks cancel in "
                "sums only; write keeper = true, or another encoding"
            )
        return self

    @property
    def at_least(self) -> int:
        return self.fewest

    def objection(self, whole: Algorithm) -> str | None:
        if not whole.aggregate.sums:
            rule = getattr(whole.aggregate, "name", "")
            return (
                f'collect.name = "secure" gives sums only, and aggregate.name = {rule!r} needs every update; '
                "write aggregate.name = 'partial' or 'full', or another collect"
            )
        if whole.select.sees_updates:
            selector = getattr(whole.select, "name", "")
            return f'collect.name = "secure" gives sums only, and select.name = {selector!r} compares updates'
        return None

    def terms(self, session: bytes, round: int) -> Terms:
        """What a party reads in the configuration about a session that the server opens."""
        return Terms(
            session=session,
            round=round,
            threshold=self.threshold,
            fewest=self.fewest,
            graph=self.graph,
            neighbours=self.neighbours,
        )

    def at_sites(self) -> AtSites:
        return self.sites(authority_here())

    def sites(self, identities: Identities) -> AtSites:
        """What a site does if its clients sign like that: in deployment with its certificate."""
        return SecureSite(self, identities).at_site()

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
        fold = begin()
        assert isinstance(fold, LinearFold), "refused when the configuration was read"
        trained = [replaced(task, work=replaced(task.work, upload_bytes=0)) for task in tasks]
        with federation.dispatch(trained, until) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        sound, refused = sift(outcomes, replace(expected, parts={}, carried=(HELD,)))
        answered = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        cohort, form = alike(sound, refused, expected)
        summed = SecureRound(self, fold, expected, form, cohort, counts).sum_up(federation)
        refused += sorted(summed.refused, key=lambda refusal: refusal.client)
        return Gathered(
            model=fold.finish(),
            parts=summed.parts,
            folded=summed.folded,
            reported=cohort,
            refused=refused,
            answered=answered + summed.answered,
            left=summed.left,
            measured=summed.measured,
        )
