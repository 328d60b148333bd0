"""What the server tells all members of a session alike: their weights, the encoding's parameters, the model.

A digest of it goes into the masks, so that clients who were told different things have different masks.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import Arrays
from winnow.privacy.secure.encoding import Parameters
from winnow.privacy.secure.refusal import RefusedError


@dataclass(frozen=True, kw_only=True)
class Told:
    """Every member, by number and in order, with what it counts; and what all encode with."""

    members: NDArray[np.int64]
    weights: NDArray[np.float64]
    parameters: Parameters

    def __post_init__(self) -> None:
        members, weights = self.members, self.weights
        if members.ndim != 1 or members.shape != weights.shape or (np.diff(members) <= 0).any():
            raise RefusedError("the members and their weights do not belong together")
        if not ((weights > 0) & (weights <= 1)).all():
            raise RefusedError("a weight is not above 0 and at most 1")

    def weight_of(self, client: int, heaviest: float) -> float:
        """The client's own weight; refused if somebody makes up more than the share `heaviest` of all weights.

        Otherwise a server could give all but one next to no weight, and call that client's update a sum.
        """
        place = int(np.searchsorted(self.members, client))
        if place == len(self.members) or self.members[place] != client:
            raise RefusedError("this client has no weight")
        share = float(self.weights.max() / self.weights.sum())
        if share > heaviest:
            raise RefusedError(f"one client makes up {share:.0%} of the sum, and collect.heaviest is {heaviest:.0%}")
        return float(self.weights[place])

    def digest(self, session: bytes, model: Arrays) -> bytes:
        found = hashlib.sha256(b"winnow told" + session)
        numbers = {"members": self.members, "weights": self.weights, **self.parameters.as_arrays()}
        for name, array in sorted(numbers.items()):
            found.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
        for name, tensor in sorted(model.items()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            found.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        return found.digest()
