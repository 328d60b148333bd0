"""Client-level differential privacy: the server, which is trusted, adds noise to a sum of bounded updates."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from winnow.core import Arrays, Federation, Randomness, Reply
from winnow.learn.aggregation import LinearFold, mean_weight
from winnow.learn.algorithm import Algorithm
from winnow.learn.algorithm_part import ALL_EVIDENCE, EvidenceKind
from winnow.learn.collect import Collect, RoundContext, RoundResult
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.reply_checks import check_replies
from winnow.learn.update_filters import drop_training_loss
from winnow.privacy.dp.clipping import AdaptiveClipping, apply_delta, clip_to_norm, weighted_delta
from winnow.privacy.dp.selection_check import selection_fault
from winnow.privacy.dp.settings import ClipNorm, Delta, EpsilonBudget, NoiseMultiplier

CLIP = "clip"


class CentralDp(Collect):
    """θ ← θ + (Σ_k clip(w_k·Δ_k) + N(0, (z·C)²)) / K (McMahan et al., 2018).

    Weight, bound, sum, noise, and division by a public constant, in this order. w_k is what the aggregation gives the
    client over what it gives a client on average, C is `clip` and z `noise_multiplier`; K is how many clients a round
    selects by the settings, never how many there were. With `adaptive_clip`, C is only the first bound, and follows the
    `quantile` of the updates' norms. A run stops before it would spend more than `epsilon`.

    What is not finite in an update counts as no change: its refusal would stand in the log, and no noise covers that.
    """

    name: Literal["central-dp"] = "central-dp"
    noise_multiplier: NoiseMultiplier
    clip: ClipNorm = 1.0
    adaptive_clip: bool = False
    quantile: float = Field(default=0.5, gt=0, lt=1)
    clip_learning_rate: float = Field(default=0.2, gt=0)
    delta: Delta = 1e-5
    epsilon: EpsilonBudget | None = None
    needs: ClassVar[Mapping[str, str]] = {"schedule": "rounds"}
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = ALL_EVIDENCE

    def conflict(self, whole: Algorithm) -> str | None:
        if not whole.aggregate.needs_only_sums:
            rule = getattr(whole.aggregate, "name", "")
            return f'collect.name = "central-dp" adds noise to sums, and aggregate.name = {rule!r} needs every update'
        if getattr(whole.server, "name", "") == "feddyn":
            return 'collect.name = "central-dp" tells nobody how many took part, by which server.name = "feddyn" goes'
        if whole.client.extra_parts:
            method = getattr(whole.client, "name", "")
            return (
                f'collect.name = "central-dp" bounds the model alone, and client.name = {method!r} also sends '
                f"{', '.join(whole.client.extra_parts)}; write another client"
            )
        return selection_fault(whole, 'collect.name = "central-dp"')

    def privacy_text(self) -> str:
        budget = "" if self.epsilon is None else f", and the run stops before that exceeds {self.epsilon:g}"
        return (
            "central-dp: the server sees every update, and must be trusted with them and to add the noise; losses stay "
            f"at the clients. Towards all who see its models, noise of {self.noise_multiplier:g} times the bound hides "
            f"whether a client took part at all: ε, at δ = {self.delta:g}, is told after every round{budget}. "
            'Amplification by sampling is counted for select.name = "poisson" alone, in a simulation, whose log must '
            "not be published. Under any other selection, and in a deployed job, whose log its members read, a client "
            "pays in full whenever it takes part. It costs accuracy, less with more clients in a round."
        )

    def site_extension(self, randomness: Randomness, identities: PartyIdentities | None = None) -> SiteExtension:
        return SiteExtension(filters=(drop_training_loss,))

    def gather(self, federation: Federation, context: RoundContext) -> RoundResult:
        fold = context.start_fold()
        assert isinstance(fold, LinearFold), "refused when the configuration was read"
        with federation.dispatch(context.tasks, context.until) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        folded, refused, answered = check_replies(outcomes, context.expected)
        unit = mean_weight(fold, federation.population)
        weights = [fold.weight_of(reply.task.client, context.counts[reply.task.client]) / unit for reply in folded]
        mean, bound = self._noisy_mean(
            folded, weights, context, federation.randomness(context.seed, "central-dp", context.round)
        )
        fold.add_mean(mean, context.selected * unit)
        return RoundResult(
            model=fold.finish(),
            parts={},
            aggregated=folded,
            reported=folded,
            rejected=refused,
            answered=answered,
            next_round_state={CLIP: np.array([bound])},
            metrics={CLIP: bound},
            valid_without_replies=True,
        )

    def _noisy_mean(
        self, replies: Sequence[Reply], weights: Sequence[float], context: RoundContext, rng: np.random.Generator
    ) -> tuple[Mapping[str, Tensor], float]:
        """The model moved by the noisy sum over K, and the bound of the next round."""
        start, bound = context.expected.parts["model"], self._bound(context.state)
        total, within = clipped_sum(replies, weights, start, bound)
        follows = AdaptiveClipping.of(self.quantile, self.clip_learning_rate, self.noise_multiplier, context.selected)
        noise = follows.sum_noise(self.noise_multiplier) if self.adaptive_clip else self.noise_multiplier
        total += torch.from_numpy(rng.normal(0.0, noise * bound, len(total))).to(total.device)
        following = follows.next(bound, within, context.selected, rng) if self.adaptive_clip else bound
        return apply_delta(start, total / context.selected), following

    def _bound(self, state: Mapping[str, Any]) -> float:
        return float(np.asarray(state[CLIP])[0]) if CLIP in state else self.clip


def clipped_sum(
    replies: Sequence[Reply], weights: Sequence[float], start: Arrays, bound: float
) -> tuple[Tensor, list[bool]]:
    """Σ_k clip(w_k·(θ_k − θ)), and who was within the bound. No client can move the sum by more than the bound."""
    total, within = torch.zeros_like(weighted_delta(start, start, 0.0)), []
    for reply, weight in zip(replies, weights, strict=True):
        share, unchanged = clip_to_norm(weighted_delta(reply.payload["model"], start, weight), bound)
        total += share
        within.append(unchanged)
    return total, within
