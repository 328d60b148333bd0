"""Data as flat arrays: a whole set, the clients' shares of it, and what is held out.

No Python object exists per sample or per client: client k owns `rows[offsets[k]:offsets[k + 1]]`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.preprocessing import Affine, Preprocessing

Indices: TypeAlias = NDArray[np.int64]
Reals: TypeAlias = NDArray[np.float32]
Features: TypeAlias = Reals | Indices
"""Numbers, or the identifiers of tokens."""
Targets: TypeAlias = Indices | Reals
"""Class labels [n], a class at each position of a sequence [n, t], or the values [n, t] of a regression."""

AS_IT_IS = Preprocessing()
CLEAN = "clean"
AS_GIVEN = "as given"
"""Where nothing was spoiled on purpose, nobody knows whether data are clean."""
FINGERPRINT_BYTES = 1 << 24
"""About so much of the features is looked at to tell one data set from another: a start need not wait for more."""
FINGERPRINT_CLIENTS = 4
"""So many clients are loaded to tell one population from another."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RawDataSet:
    """A known set as its files hold it, before scaling. Texts are an array of objects [n], a table is its columns."""

    x: NDArray[Any] | Mapping[str, NDArray[Any]]
    y: NDArray[Any]
    classes: int | None
    owners: Indices | None = None
    owner_names: tuple[str, ...] | None = None
    test_rows: Indices | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """A whole data set, before it is spread over clients. Images are [n, channels, height, width].

    `owners` names the natural client of each row (-1 where it has none); `test_rows` is the official test split.
    """

    name: str
    x: Features
    y: Targets
    classes: int | None
    owners: Indices | None = None
    owner_names: tuple[str, ...] | None = None
    """What owner 0, 1, … is called."""
    test_rows: Indices | None = None
    preprocessing: Preprocessing = AS_IT_IS
    """What made the features and targets out of raw rows, for rows that come later."""

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise DataError(f"{self.name}: x has {len(self.x)} rows but y has {len(self.y)}; they must match")
        if self.owners is not None and len(self.owners) != len(self.x):
            raise DataError(f"{self.name}: x has {len(self.x)} rows but owners has {len(self.owners)}; they must match")
        if len(self.x) == 0:
            raise DataError(f"{self.name}: there are no rows")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def tokens(self) -> bool:
        """Whether the features are identifiers, with which one cannot calculate."""
        return self.x.dtype.kind == "i"


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Samples that belong together: a client's own, the reference set or the test set."""

    x: Features
    y: Targets

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientData:
    """All clients' samples in one pair of flat arrays, with an index list per client."""

    x: Features
    y: Targets
    rows: Indices
    offsets: Indices
    classes: int | None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        return np.diff(self.offsets)

    def rows_of(self, client: int) -> Indices:
        return self.rows[self.offsets[client] : self.offsets[client + 1]]

    def client(self, client: int) -> Examples:
        rows = self.rows_of(client)
        return Examples(x=self.x[rows], y=self.y[rows])

    def fingerprint_arrays(self) -> tuple[NDArray[Any], ...]:
        """Arrays that tell these clients from others: everything but the features, of which every few rows must do."""
        return self.x[:: 1 + self.x.nbytes // FINGERPRINT_BYTES], self.y, self.rows, self.offsets


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientsOnDemand:
    """Clients of known sizes whose samples are loaded when they are asked for. `like` shows what samples are like."""

    sizes: Indices
    load: Callable[[int], Examples]
    classes: int | None
    template: Examples

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def sample_bytes(self) -> int:
        return int(np.prod(self.template.x.shape[1:])) * self.template.x.itemsize

    def gather(self, clients: Indices) -> ClientData:
        """The samples of these clients, which are the clients 0, 1, 2 … of what is returned."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes[clients])])
        x = np.empty((offsets[-1], *self.template.x.shape[1:]), self.template.x.dtype)
        y = np.empty((offsets[-1], *self.template.y.shape[1:]), self.template.y.dtype)
        for place, client in enumerate(clients.tolist()):
            own, rows = self.load(client), slice(offsets[place], offsets[place + 1])
            x[rows], y[rows] = own.x, own.y
        return ClientData(x=x, y=y, rows=np.arange(len(x)), offsets=offsets, classes=self.classes)

    def fingerprint_arrays(self) -> tuple[NDArray[Any], ...]:
        """Arrays that tell these clients from others as far as a look at a few of them can."""
        few = self.gather(np.unique(np.linspace(0, len(self) - 1, FINGERPRINT_CLIENTS).astype(np.int64)))
        return few.x, few.y, self.sizes


@dataclass(frozen=True, kw_only=True, eq=False)
class DataConditions:
    """What was done to whose data. For reports and the simulated world: no algorithm is ever handed this."""

    labels: tuple[str, ...]
    """The first is that of clients whose data were left alone."""
    of_client: Indices

    @property
    def corrupted(self) -> NDArray[np.bool_]:
        """Whose data were spoiled."""
        return self.of_client > 0


@dataclass(frozen=True, kw_only=True, eq=False)
class FederatedData:
    """A data set spread over clients, with a reference set and a test set that no client holds."""

    clients: ClientData | ClientsOnDemand
    reference: Examples
    test: Examples
    conditions: DataConditions
    local_test: ClientData | None = None
    """Samples that each client keeps out of its own training, to evaluate the model that it uses itself."""
    preprocessing: Preprocessing = AS_IT_IS
    owner_names: tuple[str, ...] | None = None
    """The owner of client 0, 1, … where each client is an owner."""
    server_labelled: Examples | None = None
    """Labelled samples that the server trains on itself, where labels are there. The reference set is never among
    them.
    """
    open: Features | None = None
    """Samples without labels that everybody may see."""
    hidden_labels: Targets | None = None
    """An array like the clients' y with the labels that they do not get. For the recorder of a simulation alone."""
    feature_scaling: Affine | None = None
    """By which the server standardised an encoder's features of what it scores, if it did."""

    @property
    def client_names(self) -> "ClientNames":
        return ClientNames(len(self.clients), self.owner_names)


class ClientNames(Sequence[str]):
    """What people call each client: its owner's name, or else its number. A million of them take no room."""

    def __init__(self, count: int, owners: tuple[str, ...] | None = None) -> None:
        self._clients, self._owners = range(count), owners

    def __len__(self) -> int:
        return len(self._clients)

    @overload
    def __getitem__(self, client: int) -> str: ...

    @overload
    def __getitem__(self, client: slice) -> list[str]: ...

    def __getitem__(self, client: int | slice) -> str | list[str]:
        if isinstance(client, slice):
            return [self[each] for each in self._clients[client]]
        return f"client {self._clients[client]}" if self._owners is None else self._owners[client]

    @property
    def owners(self) -> tuple[str, ...]:
        """The names, if clients have any."""
        return self._owners or ()

    def __repr__(self) -> str:
        return repr(self[:])
