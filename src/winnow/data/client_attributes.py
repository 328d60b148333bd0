"""What is known of each client by columns of its rows: where inputs are public, so is this."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError, suggest
from winnow.data.preprocessing import Column, Preprocessing
from winnow.data.types import ClientData, ClientsOnDemand


class ClientAttributes:
    """Clients' samples, a value or a row of numbers each. A client of several samples has their mean, and of
    categories the most frequent.
    """

    def __init__(self, clients: ClientData | ClientsOnDemand, preprocessing: Preprocessing) -> None:
        self._clients, self._preprocessing = clients, preprocessing

    def column(self, name: str) -> NDArray[Any]:
        """Numbers in the data's units, or categories as an array of texts."""
        column, places = _feature_places(self._preprocessing, name)
        means = self._means()[:, places]
        if column.kind == "category":
            labels: NDArray[Any] = np.array([*column.categories, "other"], object)[means.argmax(1)]
            return labels
        numbers: NDArray[np.float64] = means[:, 0] * column.width + column.shift
        return numbers

    def features(self, names: Sequence[str]) -> NDArray[np.float64]:
        """The scaled features of these columns, or of all."""
        means = self._means()
        return (
            means[:, [place for name in names for place in _feature_places(self._preprocessing, name)[1]]]
            if names
            else means
        )

    def _means(self) -> NDArray[np.float64]:
        clients = self._clients
        if isinstance(clients, ClientsOnDemand):
            clients = clients.gather(np.arange(len(clients)))
        x = clients.x[clients.rows].reshape(len(clients.rows), -1).astype(np.float64)
        sums = np.add.reduceat(x, clients.offsets[:-1], axis=0) if len(x) else np.zeros((0, x.shape[1]))
        found: NDArray[np.float64] = sums / clients.sizes[:, None]
        return found


def column_mask(preprocessing: Preprocessing, names: Sequence[str]) -> NDArray[np.int64]:
    """1 at the features of these columns, 0 elsewhere."""
    places = [place for name in names for place in _feature_places(preprocessing, name)[1]]
    mask = np.zeros(len(preprocessing.features), np.int64)
    mask[places] = 1
    return mask


def _feature_places(preprocessing: Preprocessing, name: str) -> tuple[Column, list[int]]:
    """A column, and which features are made of it."""
    first = 0
    for column in preprocessing.columns:
        count = len(column.features)
        if column.name == name:
            return column, list(range(first, first + count))
        first += count
    known = [column.name for column in preprocessing.columns]
    if not known:
        raise ConfigError(f"ensemble: the data have no column {name!r}: they are arrays without names")
    raise ConfigError(
        f"ensemble: no feature is called {name!r}; {suggest(name, known)} (targets cannot be used: clusters would tell "
        "labels)"
    )
