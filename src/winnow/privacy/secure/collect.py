"""Secure aggregation as a `collect`: any algorithm that lives on sums becomes private by naming it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from winnow.core import ConfigError, Federation, Task, Until
from winnow.learn.aggregate import Fold, LinearFold
from winnow.learn.algorithm import Algorithm
from winnow.learn.collect import Collect, Expected, Gathered
from winnow.learn.matching import AtSites
from winnow.privacy.secure.encoding import Encoding
from winnow.privacy.secure.identity import Identities, authority_here
from winnow.privacy.secure.keeper import Keeper, keeper_here
from winnow.privacy.secure.keeper_site import KeeperAtSite, KeeperSite
from winnow.privacy.secure.round import SecureRound, train_and_hold
from winnow.privacy.secure.scalar import Scalar
from winnow.privacy.secure.site import SecureSite
from winnow.privacy.secure.terms import Terms


class Secure(Collect):
    """The server learns the sum of the clients' updates, and no update.

    Out of n clients that have trained, `threshold`·n must stay to the end, and never fewer than `fewest`; otherwise
    nothing is revealed and the round is abandoned. With a `keeper`, a party of its own holds the masks' seeds (in a
    deployed job the site of that name); otherwise the clients do among themselves, all with all (`graph` "complete") or
    each with some `neighbours` ("ring"). No client may make up more than the share `heaviest` of all weights, and no
    more than the share `overflow` of the sums may have overflowed.
    """

    name: Literal["secure"] = "secure"
    encoding: Encoding = Scalar()
    threshold: float = Field(default=2 / 3, gt=0.5, le=1)
    fewest: int = Field(default=3, ge=2)
    graph: Literal["complete", "ring"] = "complete"
    neighbours: int | None = Field(default=None, ge=2, multiple_of=2)
    keeper: bool | Annotated[str, Field(min_length=1)] = False
    heaviest: float = Field(default=0.9, gt=0, le=1)
    overflow: float = Field(default=0.0, ge=0, le=1)
    needs: ClassVar[Mapping[str, str]] = {"pace": "rounds"}
    _kept_at: int | None = PrivateAttr(default=None)
    """The number of a client whose site keeps the masks; None where the keeper is in this process."""
    sums_only: ClassVar[bool] = True

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

    def says(self) -> str:
        cost = "one exchange" if self.keeper else "five exchanges, with letters between clients,"
        return (
            f"secure: the server learns the sum of the updates of a round, over {self.fewest} clients or more, and no "
            f"update. {self._trust()} A sum over few clients still tells of each. It costs {cost} besides training. "
            f"{self.encoding.says()}"
        ).rstrip()

    def _trust(self) -> str:
        if self.keeper:
            return "Server and mask keeper must not collude: together they can read every update."
        holders = "all members" if self.graph == "complete" else "any client's neighbours"
        enough = self.threshold if self.graph == "complete" else 0.4
        return (
            f"Who colludes with the server must be fewer than {100 * enough:.0f} % of {holders}; if the "
            f"server also lies, fewer than {100 * (2 * self.threshold - 1):.0f} % of them all."
        )

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
        own = SecureSite(self, identities).at_site()
        if self.third_party is None:
            return own
        return own.around(KeeperSite(identities, threshold=self.threshold, fewest=self.fewest).at_site())

    @property
    def third_party(self) -> str | None:
        return self.keeper if isinstance(self.keeper, str) else None

    def between(self, sites: Mapping[str, int]) -> "Secure":
        if not self.keeper:
            return self
        name = self.third_party
        if name is None or name not in sites:
            wrong = "keeper = true names none" if name is None else f"there is no site {name!r} in the job"
            raise ConfigError(
                f"collect.keeper: the server must not keep the masks itself, and {wrong}; "
                f'write keeper = "SITE", one of {", ".join(sorted(sites))}'
            )
        found = self.model_copy()
        found._kept_at = sites[name]
        return found

    def keeper_for(self, federation: Federation, round: int, version: int) -> Keeper:
        """The keeper, where it is: at its site, or in a simulation here."""
        if self._kept_at is None:
            return keeper_here(self.threshold, self.fewest)
        return KeeperAtSite(federation, self._kept_at, round, version)

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
        held = train_and_hold(federation, tasks, until, expected)
        summed = SecureRound(self, fold, expected, held.form, held.cohort, counts).sum_up(federation)
        return Gathered(
            model=fold.finish(),
            parts=summed.parts,
            folded=summed.folded,
            reported=held.cohort,
            refused=held.refused + sorted(summed.refused, key=lambda refusal: refusal.client),
            answered=held.answered + summed.answered,
            left=summed.left,
            measured=summed.measured,
        )
