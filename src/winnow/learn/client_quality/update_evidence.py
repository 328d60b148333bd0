"""How clients' updates lie among the others': their length and their direction, over the rounds of a run.

For an update Δ_k = θ_k − θ of a round with weights w, the length is told as ‖Δ_k‖ / median_j ‖Δ_j‖, and the direction
as the cosine of the angle between Δ_k and the weighted mean of the others, Σ_{j≠k} w_j·Δ_j. Robust rules look at the
same two: norm bounding (Sun et al., 2019), FoolsGold (Fung et al., 2020), FedCE (Jiang et al., 2023).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import Reply
from winnow.learn.reply_checks import is_bounded_update

MIN_CLIENTS = 4
"""With fewer nobody can say who is the odd one."""
MAD_TO_SD = 1.4826
"""A normal distribution's standard deviation by its median absolute deviation."""
MIN_SPREAD = 0.05
"""Of log lengths and of cosines: clients that differ by less are alike."""
NOTABLE_RATIO = 1.2
"""Lengths that differ by less are not worth a word."""
BLOCK_VALUES = 2**22
"""So many values of updates, of all clients together, are looked at at a time."""


@dataclass(frozen=True, kw_only=True)
class UpdateScore:
    """One client's updates among the others', averaged over the rounds in which it took part."""

    norm_ratio: float
    """The geometric mean of its length over the round's median."""
    cosine: float
    """Of the angle to the mean of the others."""
    z: float
    """How many standard deviations it lies from the clients' median: too long, too short or turned away; at least 0."""
    rounds: int

    def text(self) -> str:
        """What is unlike the others, in words."""
        times = max(self.norm_ratio, 1 / self.norm_ratio)
        longer = "longer" if self.norm_ratio > 1 else "shorter"
        length = f"{times:.1f} times {longer} than the median's, " if times >= NOTABLE_RATIO else ""
        return f"updates: {length}cosine {self.cosine:.2f} to the mean of the others'"


class UpdateEvidence:
    """What the updates of a run have shown so far. `trained` names the tensors that clients train."""

    def __init__(self, trained: Sequence[str]) -> None:
        self._trained = tuple(trained)
        self._sums: dict[int, NDArray[np.float64]] = {}
        """By client: rounds, then sums and sums of squares of [log length, cosine]."""

    def observe(self, replies: Sequence[Reply], weights: Mapping[int, float]) -> None:
        """Take in the updates of one round. One that is not finite is passed over: its client was told so elsewhere."""
        sound = replies
        lengths, cosines = self._seen(sound, weights)
        if not np.isfinite(lengths).all():
            sound = [reply for reply in replies if is_bounded_update(reply)]
            lengths, cosines = self._seen(sound, weights)
        clients = [reply.task.client for reply in sound]
        moved = lengths > 0
        if len(sound) < 2 or not moved.any():
            return
        least = lengths[moved].min() / 1e3  # a client that sends back what it got has no logarithm
        logs = np.log(np.maximum(lengths, least) / np.median(lengths[moved]))
        for client, *seen in zip(clients, logs, cosines, strict=True):
            values = np.array(seen)
            known = self._sums.setdefault(client, np.zeros(5))
            known += np.concatenate([[1.0], values, values**2])

    def _seen(
        self, replies: Sequence[Reply], weights: Mapping[int, float]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return lengths_and_cosines(replies, self._trained, np.array([weights[reply.task.client] for reply in replies]))

    def scores(self) -> dict[int, UpdateScore]:
        """By client; none where fewer than four have been seen."""
        if len(self._sums) < MIN_CLIENTS:
            return {}
        clients = sorted(self._sums)
        sums = np.stack([self._sums[k] for k in clients])
        rounds, means = sums[:, :1], sums[:, 1:3] / sums[:, :1]
        z = _robust_z(means, sums[:, 3:] / rounds - means**2, rounds)
        unlike = np.maximum(np.abs(z[:, 0]), -z[:, 1]).clip(min=0)
        return {
            client: UpdateScore(
                norm_ratio=float(np.exp(means[i, 0])),
                cosine=float(means[i, 1]),
                z=float(unlike[i]),
                rounds=int(rounds[i, 0]),
            )
            for i, client in enumerate(clients)
        }

    def state(self) -> dict[str, Any]:
        clients = sorted(self._sums)
        sums = np.array([self._sums[k] for k in clients]).reshape(-1, 5)
        return {"clients": np.array(clients, np.int64), "sums": sums}

    def restore(self, state: Mapping[str, Any]) -> None:
        clients, sums = np.asarray(state["clients"]), np.asarray(state["sums"], np.float64)
        self._sums = {int(k): own.copy() for k, own in zip(clients, sums, strict=True)}


def lengths_and_cosines(
    replies: Sequence[Reply], names: Sequence[str], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """‖Δ_k‖, and the cosine of Δ_k to the weighted mean of the others; 0 where either does not move.

    With G = Σ w_j·Δ_j, the others' sum is G − w_k·Δ_k, whose products follow from ‖Δ_k‖², Δ_k·G and ‖G‖².
    """
    share = weights / weights.sum()
    squares, dots, total = np.zeros(len(replies)), np.zeros(len(replies)), 0.0
    for block in _blocks(replies, names):
        mean = torch.as_tensor(share).to(block) @ block
        squares += torch.linalg.vector_norm(block, dim=1).double().square().cpu().numpy()
        dots += (block @ mean).double().cpu().numpy()
        total += float(torch.linalg.vector_norm(mean)) ** 2
    others = np.maximum(total - 2 * share * dots + share**2 * squares, 0)
    products = np.sqrt(squares * others)
    # What is left of the others by rounding, where there are none or they cancel, has no direction.
    moves = (products > 0) & (others > 1e-6 * share**2 * squares)
    cosines = np.divide(dots - share * squares, products, out=np.zeros_like(products), where=moves)
    return np.sqrt(squares), cosines.clip(-1, 1)


def _blocks(replies: Sequence[Reply], names: Sequence[str]) -> Iterator[Tensor]:
    """Updates [K, values], so many values at a time; each from the model that its client was sent."""
    if not replies:
        return
    width = max(1, BLOCK_VALUES // len(replies))
    sent = [reply.task.payload["model"] for reply in replies]
    if all(model is sent[0] for model in sent):
        sent = sent[:1]
    for name in names:
        after = [torch.split(reply.payload["model"][name].reshape(-1), width) for reply in replies]
        before = [torch.split(model[name].reshape(-1), width) for model in sent]
        for i in range(len(after[0])):
            yield torch.stack([own[i] for own in after]) - torch.stack([own[i] for own in before])


def _robust_z(
    means: NDArray[np.float64], variances: NDArray[np.float64], rounds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How far each client's mean lies from the median, by the median absolute deviation.

    A client that was seen in fewer rounds than others has a noisier mean: what its rounds vary by is added. The
    deviation of few clients is itself uncertain: with the factor, the 99 % quantile of normal values stays below 3.5,
    however many there are.
    """
    centre = np.median(means, 0)
    deviation = np.abs(means - centre)
    few = 1 + 20 / (len(means) - 2) ** 2
    spread = few * np.maximum(MAD_TO_SD * np.median(deviation, 0), MIN_SPREAD)
    several = rounds[:, 0] > 1
    within = np.median((variances * rounds / np.maximum(rounds - 1, 1))[several], 0) if several.any() else 0.0
    noise = within * (1 / rounds - 1 / np.median(rounds)).clip(min=0)
    result: NDArray[np.float64] = (means - centre) / np.sqrt(spread**2 + noise)
    return result
