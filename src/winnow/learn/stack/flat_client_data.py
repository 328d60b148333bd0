"""Client data as flat tensors with an index list per client, all of them or those that are loaded for now."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]

BLOCK_BYTES = 1 << 24
"""Where clients' samples are loaded on demand and a client at a time would do, about so much is loaded at a time."""


class ClientArrays(Protocol):
    """Samples of all clients in one array, and for each client its rows: `rows[offsets[k]:offsets[k + 1]]`."""

    @property
    def x(self) -> NDArray[np.generic]: ...
    @property
    def y(self) -> NDArray[np.generic]: ...
    @property
    def rows(self) -> Indices: ...
    @property
    def offsets(self) -> Indices: ...


class ClientLoader(Protocol):
    """Gives the samples of any of a population's clients; `sizes` says how many each has."""

    @property
    def sizes(self) -> Indices: ...
    @property
    def sample_bytes(self) -> int: ...

    def gather(self, clients: Indices) -> ClientArrays:
        """These clients' samples; in what is returned they are the clients 0, 1, 2 …"""


class ClientSamples(Protocol):
    """Where the clients' samples are to be had: in memory, or loaded when they are asked for."""

    @property
    def device(self) -> torch.device: ...

    def first_samples(self, samples: int) -> tuple[Tensor, Tensor]:
        """Some samples to try things out with, at most so many."""

    def sizes(self, clients: Indices) -> Indices:
        """How many samples each client has."""

    def cohort(self, clients: Indices) -> "TensorData":
        """Data that hold these clients under their own numbers, and maybe others."""

    def blocks(self, clients: Indices) -> "Iterator[tuple[Indices, TensorData]]":
        """The clients in their order, a block at a time with its data, so that memory suffices for any number."""


@dataclass(frozen=True, kw_only=True)
class TensorData:
    """One flat tensor of samples on a device; the client at place k holds the rows `rows[offsets[k]:offsets[k + 1]]`.

    Places are clients' numbers, unless only the `loaded_clients` are here: then they are places in that sorted list.
    """

    x: Tensor
    y: Tensor
    rows: Indices
    offsets: Indices
    loaded_clients: Indices | None = None

    @classmethod
    def from_client_data(cls, data: ClientArrays, device: torch.device | str = "cpu") -> Self:
        return cls(
            x=as_tensor(data.x, device),
            y=as_tensor(data.y, device),
            rows=np.asarray(data.rows, np.int64),
            offsets=np.asarray(data.offsets, np.int64),
        )

    @property
    def device(self) -> torch.device:
        return self.x.device

    @cached_property
    def labelled(self) -> NDArray[np.bool_]:
        """Which rows have a label, [n]; −1 is none."""
        return (self.y >= 0).reshape(len(self.y), -1).all(1).cpu().numpy()

    def sizes(self, clients: Indices) -> Indices:
        """How many samples each client has."""
        places = self._places(clients)
        return np.asarray(self.offsets[places + 1] - self.offsets[places])

    def rows_of(self, client: int) -> Indices:
        """Where a client's samples are in x and y."""
        place = client if self.loaded_clients is None else int(np.searchsorted(self.loaded_clients, client))
        return self.rows[self.offsets[place] : self.offsets[place + 1]]

    def samples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.x.index_select(0, rows), self.y.index_select(0, rows)

    def first_samples(self, samples: int) -> tuple[Tensor, Tensor]:
        return self.x[:samples], self.y[:samples]

    def cohort(self, clients: Indices) -> "TensorData":
        return self

    def blocks(self, clients: Indices) -> "Iterator[tuple[Indices, TensorData]]":
        yield clients, self

    def _places(self, clients: Indices) -> Indices:
        return clients if self.loaded_clients is None else np.searchsorted(self.loaded_clients, clients)


@dataclass(frozen=True, kw_only=True)
class LazyTensorData:
    """Samples that are loaded when they are asked for, and forgotten by whoever asked."""

    loader: ClientLoader
    device: torch.device

    def first_samples(self, samples: int) -> tuple[Tensor, Tensor]:
        return self.cohort(np.arange(min(samples, len(self.loader.sizes)))).first_samples(samples)

    def sizes(self, clients: Indices) -> Indices:
        return np.asarray(self.loader.sizes[clients])

    def cohort(self, clients: Indices) -> TensorData:
        loaded_clients = np.unique(clients)
        return replace(
            TensorData.from_client_data(self.loader.gather(loaded_clients), self.device), loaded_clients=loaded_clients
        )

    def blocks(self, clients: Indices) -> Iterator[tuple[Indices, TensorData]]:
        block_of = np.cumsum(self.loader.sizes[clients] * self.loader.sample_bytes) // BLOCK_BYTES
        for block in np.split(clients, np.flatnonzero(np.diff(block_of)) + 1):
            yield block, self.cohort(block)


def as_tensor(values: NDArray[np.generic], device: torch.device | str = "cpu") -> Tensor:
    """Reals become float32, whole numbers int64: what torch's layers and losses take."""
    kind = np.float32 if np.issubdtype(values.dtype, np.floating) else np.int64
    contiguous = np.ascontiguousarray(values, dtype=kind)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy()).to(device)
