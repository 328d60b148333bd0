"""Weights of source domains by how much each one's update helps the target: dynamic attention (FADA, Peng et al., 2020,
section 3).

Features of the target's samples are clustered. The tighter the clusters, the better a model tells the classes apart
that nobody has labelled.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from winnow.core import Reply, stream
from winnow.learn.aggregation import WeightedSum
from winnow.learn.extended_model import MODEL, ExtendedModel
from winnow.learn.pseudo_labels import LABELLED
from winnow.learn.server_optimiser import Features, RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState

MAX_CLUSTERED = 1000
KMEANS_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class TargetFeatures:
    """What a model makes of samples of the target that the server has, without their labels: the input of the last
    layer of an `ExtendedModel`.
    """

    module: ExtendedModel
    x: Tensor

    @property
    def classes(self) -> int:
        return self.module.outputs

    @torch.no_grad()
    def __call__(self, model: ModelState) -> Tensor:
        own = {name.removeprefix(MODEL): tensor for name, tensor in model.items() if name.startswith(MODEL)}
        self.module.eval()
        both: Tensor = functional_call(self.module.model, own, (self.x[:MAX_CLUSTERED],))
        return both[:, self.module.outputs :]


@torch.no_grad()
def spread_within_clusters(features: Tensor, clusters: int) -> float:
    """Σ_r 1/(2·n_r) Σ_{i,j ∈ C_r} ‖f_i − f_j‖² = Σ_r Σ_{i ∈ C_r} ‖f_i − μ_r‖² over k-means' clusters, which begin with
    samples that lie far apart.
    """
    clusters = min(clusters, len(features))
    first = int(stream(0, "clusters", "first").integers(len(features)))
    centres = features[first : first + 1]
    for _ in range(clusters - 1):
        farthest = torch.cdist(features, centres).amin(1).argmax()
        centres = torch.cat([centres, features[farthest].unsqueeze(0)])
    for _ in range(KMEANS_STEPS):
        nearest = torch.cdist(features, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, features)
        counts = torch.bincount(nearest, minlength=clusters).unsqueeze(1)
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
    return float(torch.cdist(features, centres).amin(1).square().sum())


@torch.no_grad()
def share_within_clusters(features: Tensor, clusters: int) -> float:
    """1 where all features are the same: nothing is told apart."""
    whole = float((features - features.mean(0)).square().sum())
    return spread_within_clusters(features, clusters) / whole if whole > 0 else 1.0


class GapGainServer(ServerOptimiser):
    """θ = (Σ_t θ_t + S·Σ_s w_s·θ_s) / (S + T) over T clients without labels and S with; w = softmax(gain /
    temperature), where a source's gain is (R − R_s) / R: by what share R falls if its update is taken alone. R is the
    spread of the target's features within clusters as a share of their whole spread.

    FADA has the spread itself, which also falls where features only shrink.
    """

    name: Literal["gap-gain"] = "gap-gain"
    temperature: float = Field(0.1, gt=0)
    clusters: int | None = Field(None, ge=2)
    """As many as there are classes, if it is not set."""
    sees_updates: ClassVar[bool] = True
    needs_target: ClassVar[bool] = True
    needs: ClassVar[dict[str, str]] = {"client": "fade", "collect": "plain", "schedule": "rounds"}

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        sources = [reply for reply in aggregate.replies if reply.metrics.get(LABELLED, 0.0) > 0]
        if not sources or aggregate.target is None:
            return state, aggregate.model
        total = WeightedSum(model)
        for reply, weight in zip(sources, self.weights(model, sources, aggregate.target), strict=True):
            total.add(reply.payload["model"], weight * len(sources))
        for reply in aggregate.replies:
            if not reply.metrics.get(LABELLED, 0.0) > 0:
                total.add(reply.payload["model"], 1.0)
        return state, total.mean()

    def weights(self, model: ModelState, sources: list[Reply], target: Features) -> list[float]:
        clusters = self.clusters or target.classes
        before = share_within_clusters(target(model), clusters)
        gains = [
            1 - share_within_clusters(target(dict(reply.payload["model"])), clusters) / max(before, 1e-12)
            for reply in sources
        ]
        shares: list[float] = torch.softmax(torch.tensor(gains, dtype=torch.float64) / self.temperature, 0).tolist()
        return shares
