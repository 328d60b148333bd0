"""Each client's last update, and how far the updates of any two are apart."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import ConfigError, Reply
from winnow.learn.selection import SelectionContext
from winnow.learn.tensor_arithmetic import flat, minus, only

DistanceMetric: TypeAlias = Literal["angle", "euclidean"]

MAX_CLIENTS = 2_000
"""Pairs of clients are compared in every round; above this, that would take longer than training."""

MAX_VALUES = 2**28
"""Clients times trained parameters: a gigabyte."""

COLUMNS = 2**12
"""Parameters whose products are summed at a time, in double precision: few enough for a small copy."""


class LastUpdates:
    """θ_k − θ of the last time that each client trained, zero before; and the inner products of all of them."""

    def __init__(self, clients: int) -> None:
        if clients > MAX_CLIENTS:
            raise ConfigError(
                f"select: this selection compares all pairs of clients; it supports at most {MAX_CLIENTS:,} clients, "
                f"not {clients:,}"
            )
        self.known = np.zeros(clients, bool)
        self._updates = np.zeros((clients, 0), np.float32)
        self._products = np.zeros((clients, clients))

    def allocate(self, context: SelectionContext) -> None:
        """To be called before the first updates come, so that a model that is too large is refused at once."""
        clients, parameters = len(self.known), sum(context.model[name].numel() for name in context.trained)
        if clients * parameters > MAX_VALUES:
            raise ConfigError(
                f"select: this selection stores one update per client, at most {MAX_VALUES:,} values in total; "
                f"{clients:,} clients with {parameters:,} parameters exceed that: use a smaller model or fewer clients"
            )
        if self._updates.shape[1] != parameters:
            self._updates = np.zeros((clients, parameters), np.float32)

    def record(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        """Take in what clients have trained. Updates that are not finite are passed over."""
        rows = []
        for reply in replies:
            trained, sent = (only(part["model"], context.trained) for part in (reply.payload, reply.task.payload))
            update = flat(minus(trained, sent))
            if bool(torch.isfinite(update).all()):
                self._updates[reply.task.client] = update.cpu().numpy()
                rows.append(reply.task.client)
        self.known[rows] = True
        self._multiply(rows)

    def _multiply(self, rows: list[int]) -> None:
        products = np.zeros((len(rows), len(self.known)))
        for first in range(0, self._updates.shape[1], COLUMNS):
            part = self._updates[:, first : first + COLUMNS].astype(np.float64)
            products += part[rows] @ part.T
        self._products[rows] = products
        self._products[:, rows] = products.T

    def distances(self, metric: DistanceMetric) -> NDArray[np.float64]:
        """Between any two clients: the angle of their updates (arccos), or the length of the difference."""
        squares = self._products.diagonal()
        if metric == "euclidean":
            apart: NDArray[np.float64] = np.sqrt(np.maximum(squares[:, None] + squares - 2 * self._products, 0))
        else:
            lengths = np.sqrt(squares[:, None] * squares)
            cosines = np.divide(self._products, lengths, out=np.zeros_like(lengths), where=lengths > 0)
            nothing = squares == 0
            cosines[np.ix_(nothing, nothing)] = 1  # two that have not moved are alike
            apart = np.arccos(np.clip(cosines, -1, 1))
        np.fill_diagonal(apart, 0)
        return apart

    def state(self) -> Mapping[str, Any]:
        return {"known": self.known, "updates": self._updates, "products": self._products}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.known = np.array(state["known"], bool)
        self._updates = np.array(state["updates"], np.float32)
        self._products = np.array(state["products"], np.float64)
