"""Secure aggregation as a `collect`: it works with every algorithm that needs only sums of updates."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from winnow.core import ConfigError, Federation, Randomness
from winnow.learn.aggregation import LinearFold
from winnow.learn.algorithm_part import ALL_EVIDENCE, DataSummary, EvidenceKind
from winnow.learn.collect import Collect, RoundContext, RoundResult
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.update_filters import drop_training_loss
from winnow.privacy.secagg.mask_keeper_hosted_at_site import KeeperClient, KeeperSite
from winnow.privacy.secagg.masking_graph import RING_THRESHOLD
from winnow.privacy.secagg.scalar_quantisation import ScalarQuantisation
from winnow.privacy.secagg.server_round import SecureRound, train_and_hold
from winnow.privacy.secagg.session_terms import SessionTerms
from winnow.privacy.secagg.simulated_identities import simulated_identities
from winnow.privacy.secagg.site import SecureSite
from winnow.privacy.secagg.third_party_mask_keeper import KeeperInterface, MaskKeeper, simulated_keeper
from winnow.privacy.secagg.update_encoding_interface import Encoding
from winnow.privacy.secagg.update_layout import MODEL, UpdateLayout, sorted_parts


class SecureAggregation(Collect):
    """The server learns the sum of the clients' updates, and no update.

    Of n clients that have trained, `threshold`·n must stay to the end, and at least `min_clients`; otherwise nothing is
    revealed and the round is abandoned. With a `keeper`, a third party holds the seeds of the masks (in a deployed job
    the site of that name); otherwise clients share pairwise masks, each with all others (`graph` "complete") or with
    some `neighbours` ("ring"). No client may make up more than `max_weight_share` of a sum, w² / Σ w², and no more than
    `max_overflow_share` of the sums may overflow. The encoding's parameters come from the last sum, or from an update
    that the server computes on its own samples as if it were a client (`parameter_source`).
    """

    name: Literal["secure"] = "secure"
    encoding: Encoding = ScalarQuantisation()
    threshold: float = Field(default=2 / 3, gt=0.5, le=1)
    min_clients: int = Field(default=3, ge=2)
    graph: Literal["complete", "ring"] = "complete"
    neighbours: int | None = Field(default=None, ge=2, multiple_of=2)
    keeper: bool | Annotated[str, Field(min_length=1)] = False
    max_weight_share: float = Field(default=0.75, gt=0, le=1)
    max_overflow_share: float = Field(default=0.0, ge=0, le=1)
    parameter_source: Literal["sum", "public"] = "sum"
    needs: ClassVar[Mapping[str, str]] = {"schedule": "rounds"}
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = ALL_EVIDENCE
    _keeper_client: int | None = PrivateAttr(default=None)
    """The number of a client at the keeper's site; None where the keeper is in this process."""
    sums_only: ClassVar[bool] = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.keeper and (self.graph == "ring" or self.neighbours is not None):
            raise ValueError("with a keeper, clients share no masks with each other; remove graph and neighbours")
        if self.neighbours is not None and self.graph == "complete":
            raise ValueError('neighbours needs graph = "ring"')
        if self.encoding.needs_keeper and not self.keeper:
            code = getattr(self.encoding, "name", "")
            raise ValueError(
                f"encoding.name = {code!r} needs a keeper: codewords are counted, and pairwise masks cancel in sums "
                'only; write keeper = true, or keeper = "SITE" in a deployed job, or another encoding'
            )
        return self

    @property
    def min_cohort_size(self) -> int:
        return self.min_clients

    @property
    def emulates(self) -> bool:
        return self.parameter_source == "public"

    def privacy_text(self) -> str:
        cost = "one exchange" if self.keeper else "five exchanges, with messages between clients,"
        return (
            f"secure: the server learns the {'noisy ' if self.encoding.private else ''}sum of the updates of a round, "
            f"over {self.min_clients} clients or more, and no update. {self._trust_text()} {self._few_clients_text()}"
            f"It costs {cost} besides training. {self.encoding.privacy_text()}"
        ).rstrip()

    def _few_clients_text(self) -> str:
        return "" if self.encoding.private else "A sum over few clients still tells of each. "

    def _trust_text(self) -> str:
        if self.keeper:
            return "Server and mask keeper must not collude: together they can read every update."
        if self.graph == "complete":
            return (
                f"Who colludes with the server must be fewer than {100 * self.threshold:.0f} % of all members; if the "
                f"server also lies, fewer than {100 * (2 * self.threshold - 1):.0f} % of them all. In a deployed job "
                "the clients of one site are one party: they collude together, or not at all."
            )
        return (
            f"Who colludes with the server must be fewer than {100 * RING_THRESHOLD:.0f} % of any client's neighbours, "
            "and the server must do as it should. One that lies about who dropped out learns no smaller sum as long as "
            "nobody colludes with it; with the help of some who stand close together in the ring it may. In a deployed "
            "job the clients of one site are one party: they collude together, or not at all."
        )

    def check_data(self, data: DataSummary) -> None:
        self.encoding.group(UpdateLayout.of(sorted_parts({MODEL: data.shared_model})), data.largest_cohort)

    def terms(self, session: bytes, round: int) -> SessionTerms:
        """The terms of a session that the server opens, from this party's own configuration."""
        return SessionTerms(
            session=session,
            round=round,
            threshold=self.threshold,
            min_clients=self.min_clients,
            graph=self.graph,
            neighbours=self.neighbours,
        )

    def site_extension(self, randomness: Randomness, identities: PartyIdentities | None = None) -> SiteExtension:
        identities = identities or simulated_identities()
        own = SecureSite(self, identities, randomness).extension()
        if self.encoding.private:
            own = own.around(SiteExtension(filters=(drop_training_loss,)))
        if self.third_party is None:
            return own
        keeper = MaskKeeper(
            identities,
            threshold=self.threshold,
            min_clients=self.min_clients,
            max_weight_share=self.max_weight_share,
        )
        return own.around(KeeperSite(keeper).extension())

    @property
    def third_party(self) -> str | None:
        return self.keeper if isinstance(self.keeper, str) else None

    def for_sites(self, first_clients: Mapping[str, int]) -> "SecureAggregation":
        if not self.keeper:
            return self
        name = self.third_party
        if name is None or name not in first_clients:
            wrong = "keeper = true names none" if name is None else f"there is no site {name!r} in the job"
            among = f", one of {', '.join(sorted(first_clients))}" if first_clients else ", a site of the job"
            raise ConfigError(
                f'collect.keeper: the server must not keep the masks itself, and {wrong}; write keeper = "SITE"{among}'
            )
        found = self.model_copy()
        found._keeper_client = first_clients[name]
        return found

    def keeper_for(self, federation: Federation, round: int, version: int) -> KeeperInterface:
        """The keeper: at its site, or in this process in a simulation."""
        if self._keeper_client is None:
            return simulated_keeper(self.threshold, self.min_clients, self.max_weight_share)
        return KeeperClient(federation, self._keeper_client, round, version)

    def gather(self, federation: Federation, context: RoundContext) -> RoundResult:
        fold = context.start_fold()
        assert isinstance(fold, LinearFold), "refused when the configuration was read"
        held = train_and_hold(federation, context)
        summed = SecureRound(self, fold, context, held, federation.population).sum_up(federation)
        return RoundResult(
            model=fold.finish(),
            parts=summed.parts,
            aggregated=summed.aggregated,
            reported=held.cohort,
            rejected=held.refused + sorted(summed.refused, key=lambda refusal: refusal.client),
            answered=held.answered + summed.answered,
            next_round_state=summed.next_round_state,
            metrics=summed.metrics,
        )
