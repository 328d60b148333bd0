"""Rows of named tensors by client: what simulated clients keep from round to round, what a server remembers of each.

A part is one array with a row for every client that has ever kept it, so 100,000 clients need no objects of their own
and a checkpoint holds a few arrays.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnow.core import Payload

NO_ROW = -1


class ClientStore:
    """A row a client, of every part that clients keep."""

    def __init__(self, clients: int) -> None:
        self._row = np.full(clients, NO_ROW, np.int64)
        self._owners: list[int] = []
        self._parts: dict[str, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        """How many clients there are, whether they keep anything or not."""
        return len(self._row)

    @property
    def empty(self) -> bool:
        """Whether nobody has kept anything."""
        return not self._owners

    def read(self, client: int) -> Payload:
        """What a client kept; nothing if it never did."""
        row = self._row[client]
        if row == NO_ROW:
            return {}
        return {part: {name: rows[row] for name, rows in named.items()} for part, named in self._parts.items()}

    def write(self, client: int, payload: Payload) -> None:
        """Keep this for a client. All clients of a run keep the same parts."""
        if self._row[client] == NO_ROW:
            self._row[client] = len(self._owners)
            self._owners.append(client)
        row = int(self._row[client])
        for part, named in payload.items():
            rows = self._parts.setdefault(part, {})
            for name, tensor in named.items():
                rows[name] = _with_room(rows.get(name), tensor, row)
                rows[name][row] = tensor

    def mean(self) -> Payload:
        """The mean over those who ever kept something, each counting once; nothing if nobody did."""
        used = len(self._owners)
        return {
            part: {name: rows[:used].mean(0, dtype=torch.float64).to(rows.dtype) for name, rows in named.items()}
            for part, named in self._parts.items()
        }

    def state(self) -> dict[str, Any]:
        """Named arrays for a checkpoint; none if nobody keeps anything."""
        if not self._owners:
            return {}
        used = len(self._owners)
        arrays = {f"{part}/{name}": rows[:used] for part, named in self._parts.items() for name, rows in named.items()}
        return {"owners": np.array(self._owners, np.int64), **arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        if not state:
            return
        self._owners = np.asarray(state["owners"]).tolist()
        self._row[self._owners] = np.arange(len(self._owners))
        for path, rows in state.items():
            if path != "owners":
                part, name = path.split("/", 1)
                self._parts.setdefault(part, {})[name] = rows


def _with_room(rows: Tensor | None, like: Tensor, row: int) -> Tensor:
    """The rows with one more, doubled when they are full: copies cost little in the long run."""
    if rows is None:
        return like.new_zeros(max(8, row + 1), *like.shape)
    if row < len(rows):
        return rows
    return torch.cat([rows, rows.new_zeros(max(len(rows), row + 1 - len(rows)), *rows.shape[1:])])
