"""Client data as flat tensors with an index list per client."""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]


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


@dataclass(frozen=True, kw_only=True)
class TensorData:
    """One flat tensor of samples on a device; client k holds the rows `rows[offsets[k]:offsets[k + 1]]`."""

    x: Tensor
    y: Tensor
    rows: Indices
    offsets: Indices

    @classmethod
    def from_client_data(cls, data: ClientArrays, device: torch.device | str = "cpu") -> Self:
        return cls(
            x=as_tensor(data.x, device),
            y=as_tensor(data.y, device),
            rows=np.asarray(data.rows, np.int64),
            offsets=np.asarray(data.offsets, np.int64),
        )

    def sizes(self, clients: Indices) -> Indices:
        """How many samples each client has."""
        return np.asarray(self.offsets[clients + 1] - self.offsets[clients])


def as_tensor(values: NDArray[np.generic], device: torch.device | str = "cpu") -> Tensor:
    """Reals become float32, whole numbers int64: what torch's layers and losses take."""
    kind = np.float32 if np.issubdtype(values.dtype, np.floating) else np.int64
    contiguous = np.ascontiguousarray(values, dtype=kind)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy()).to(device)
