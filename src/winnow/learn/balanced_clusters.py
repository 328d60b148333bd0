"""Clusters of about equal size among vectors of length 1, as Orchestra (Lubana et al., 2022) finds them."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

SHARPNESS = 25.0
"""λ: how strongly similarity decides, before sizes are balanced."""
MAX_SCALINGS, TOLERANCE = 100, 1e-2
LOCAL_STEPS = 5
GLOBAL_RATE = 0.1
"""The authors' numbers."""


@torch.no_grad()
def balanced_assignments(similarity: Tensor) -> Tensor:
    """softmax(λ·similarity), [n, clusters], scaled by Sinkhorn and Knopp's rule so that every row sums to 1 and every
    cluster has as much as any other.
    """
    shares = torch.softmax(SHARPNESS * similarity.double(), 1)
    rows, clusters = shares.shape
    by_cluster, by_row = shares.new_full((clusters,), 1 / clusters), shares.new_full((rows,), 1 / rows)
    for _ in range(MAX_SCALINGS):
        by_cluster = (rows / clusters) / (by_row @ shares).clamp_min(1e-300)
        scaled = 1 / (shares @ by_cluster).clamp_min(1e-300)
        moved = (scaled / by_row - 1).abs().max()
        by_row = scaled
        if moved < TOLERANCE:
            break
    return (by_row.unsqueeze(1) * shares * by_cluster).to(similarity.dtype)


@torch.no_grad()
def local_clusters(vectors: Tensor, clusters: int, rng: np.random.Generator) -> Tensor:
    """[clusters, width] centres of length 1 of a client's vectors: a few steps of balanced k-means."""
    vectors = functional.normalize(vectors)
    few = len(vectors) < clusters
    centres = vectors[torch.from_numpy(rng.choice(len(vectors), clusters, replace=few)).to(vectors.device)]
    for _ in range(LOCAL_STEPS):
        own = balanced_assignments(vectors @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, own, vectors)
        empty = torch.bincount(own, minlength=clusters) == 0
        others = vectors[torch.from_numpy(rng.integers(len(vectors), size=clusters)).to(vectors.device)]
        centres = functional.normalize(torch.where(empty.unsqueeze(1), others, sums))
    return centres


def global_clusters(vectors: Tensor, centres: Tensor, temperature: float, steps: int) -> Tensor:
    """Centres, moved from where they are, so that vectors of all clients belong to them as clearly and evenly as they
    can: gradient steps on −cos(balanced assignment, softmax(similarity / T)).
    """
    vectors, moved = functional.normalize(vectors), functional.normalize(centres).detach().clone()
    for _ in range(steps):
        moved.requires_grad_()
        with torch.enable_grad():
            similarity = vectors @ moved.T
            goal = balanced_assignments(similarity.detach())
            loss = -functional.cosine_similarity(goal, torch.softmax(similarity / temperature, 1)).mean()
            (slope,) = torch.autograd.grad(loss, moved)
        moved = functional.normalize(moved.detach() - GLOBAL_RATE * slope)
    return moved
