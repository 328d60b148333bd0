"""What the server sends to all members of a session alike: their weights, the encoding's parameters, the model.

Masks are derived from a digest of it, so that masks of clients who received different inputs do not cancel.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import Arrays
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.session_terms import write_message
from winnow.privacy.secagg.update_encoding_interface import EncodingParameters


@dataclass(frozen=True, kw_only=True)
class SessionInputs:
    """Every member, in the order of their numbers, with its weight; and the parameters that all encode with."""

    members: NDArray[np.int64]
    weights: NDArray[np.float64]
    parameters: EncodingParameters

    def __post_init__(self) -> None:
        members, weights = self.members, self.weights
        if members.ndim != 1 or members.shape != weights.shape or (np.diff(members) <= 0).any():
            raise ProtocolError("the member and weight lists do not match, or members are not in order")
        if not ((weights > 0) & (weights <= 1)).all():
            raise ProtocolError("weights must be above 0 and at most 1")

    def weight_of(self, client: int, max_weight_share: float) -> float:
        """The client's own weight; refused if anyone makes up more than `max_weight_share` of the sum over members."""
        place = int(np.searchsorted(self.members, client))
        if place == len(self.members) or self.members[place] != client:
            raise ProtocolError("this client has no weight")
        check_weights(self.weights, max_weight_share)
        return float(self.weights[place])

    def check_survivors(self, survivors: Sequence[int], max_weight_share: float) -> None:
        """The same over the survivors: a server may claim that the clients who balanced a heavy one dropped out."""
        check_weights(self.weights[np.isin(self.members, survivors)], max_weight_share)

    def digest(self, session: bytes, model: Arrays) -> bytes:
        """Covers the group, name, type and shape of every array, so that none can be passed off as another."""
        found = hashlib.sha256(write_message(["winnow session inputs", session]))
        for name, array in (("members", self.members), ("weights", self.weights)):
            _add(found, "inputs", name, array)
        for name, array in sorted(self.parameters.as_arrays().items()):
            _add(found, "encoding", name, array)
        for name, tensor in sorted(model.items()):
            found.update(write_message(["model", name, str(tensor.dtype), tuple(tensor.shape)]))
            found.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        return found.digest()


def check_weights(weights: "NDArray[np.float64]", max_weight_share: float) -> None:
    """Refuse weights by which one client makes up more than the share `max_weight_share` of a sum: w_i² / Σ_j w_j².

    Otherwise a server could give all but one next to no weight, and call that client's update a sum. Squares, because
    updates of different clients have little in common, and so add up as their squares do.
    """
    squares = np.square(weights)
    share = float(squares.max(initial=0.0) / squares.sum()) if len(weights) else 1.0
    if not share <= max_weight_share:
        raise ProtocolError(
            f"one client makes up {share:.0%} of the sum, and collect.max_weight_share is {max_weight_share:.0%}"
        )


def _add(found: "hashlib._Hash", group: str, name: str, array: "NDArray[np.generic]") -> None:
    found.update(write_message([group, name, str(array.dtype), array.shape]) + array.tobytes())
