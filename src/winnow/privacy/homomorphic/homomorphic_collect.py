"""Homomorphic aggregation as a `collect`."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from winnow.core import ConfigError, Federation, Randomness
from winnow.learn.aggregation import LinearFold
from winnow.learn.algorithm_part import ALL_EVIDENCE, DataSummary, EvidenceKind
from winnow.learn.collect import Collect, RoundContext, RoundResult
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.profile_comparison import SiteExtension
from winnow.privacy import ckks
from winnow.privacy.homomorphic.server_round import HomomorphicRound
from winnow.privacy.homomorphic.site import HomomorphicSite
from winnow.privacy.secagg.server_round import train_and_hold
from winnow.privacy.secagg.simulated_identities import simulated_identities

SETTING = 'collect.name = "homomorphic"'


class HomomorphicAggregation(Collect):
    """The server adds up encrypted updates, and learns the sum that the client `key_holder` opens with its key.

    An honest server has no sum over fewer than `min_clients` opened. No client may make up more than
    `max_weight_share` of the sum over all that are asked, w² / Σ w².
    """

    name: Literal["homomorphic"] = "homomorphic"
    key_holder: int = Field(ge=0, description="the number of the client that holds the key, such as 0")
    min_clients: int = Field(default=3, ge=2)
    max_weight_share: float = Field(default=0.75, gt=0, le=1)
    needs: ClassVar[Mapping[str, str]] = {"schedule": "rounds"}
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = ALL_EVIDENCE
    sums_only: ClassVar[bool] = True

    @property
    def min_cohort_size(self) -> int:
        return self.min_clients

    def check_data(self, data: DataSummary) -> None:
        if self.key_holder >= (clients := data.clients):
            raise ConfigError(
                f"collect.key_holder = {self.key_holder}, but there are {clients} clients, from 0; name one of them"
            )

    def site_extension(self, randomness: Randomness, identities: PartyIdentities | None = None) -> SiteExtension:
        ckks.library(SETTING)
        return HomomorphicSite(self, identities or simulated_identities()).extension()

    def privacy_text(self) -> str:
        return (
            "homomorphic: the server adds up encrypted updates and learns their sum alone, which client "
            f"{self.key_holder} opens; that client learns the sum, too. This holds for a server that does as "
            "it should: one that has a single ciphertext opened in the place of a sum is not noticed, and server and "
            "key holder together can read every update. It costs 32 bytes a parameter upwards, 8 times a plain "
            "update, and about a second a million parameters at each "
            "client. The sum is exact but for rounding values to steps of 2.4e-7."
        )

    def gather(self, federation: Federation, context: RoundContext) -> RoundResult:
        fold = context.start_fold()
        assert isinstance(fold, LinearFold), "refused when the configuration was read"
        held = train_and_hold(federation, context)
        summing = HomomorphicRound(
            settings=self,
            federation=federation,
            fold=fold,
            context=context,
            layout=held.layout,
            cohort={reply.task.client: reply for reply in held.cohort},
        )
        summing.sum_up()
        return RoundResult(
            model=fold.finish(),
            parts=summing.parts,
            aggregated=summing.folded,
            reported=held.cohort,
            rejected=held.refused + sorted(summing.refused, key=lambda refusal: refusal.client),
            answered=held.answered + summing.answered,
        )
