"""An encoder's features to mean 0 and standard deviation 1, one by one, by the samples of whoever holds them.

Means and deviations are each owner's own, so none of them are sent, and labels are not used. Where domains shift and
stretch features, they become alike; Li et al. (2016) do the same with the statistics of batch normalisation.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.core.untrusted_text import one_line
from winnow.data import ClientData, ClientsOnDemand, Examples
from winnow.data.preprocessing import Affine
from winnow.data.scaling import standard
from winnow.data.types import ClientNames

MIN_SAMPLES = 2
"""Fewer have no spread."""
LABELLED = "the server's labelled set"
WITHOUT = "leave it out, or set encode.scale = 'none'"
MORE_ROWS = "pass more rows"


def scaling_of(features: NDArray[Any], whose: str, advice: str = WITHOUT) -> Affine:
    """Means and deviations of these features. One that is the same in all samples becomes 0."""
    _check_spread(len(features), whose, advice)
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return standard(features)
    except OverflowError:
        raise DataError(f"{whose} has features that are too large to standardise; {advice}") from None


def scaled_examples(held: Examples, scaling: Affine | None) -> Examples:
    """These samples by numbers of others."""
    return replace(held, x=scaling.apply(held.x)) if scaling is not None and len(held) else held


def standardised(held: Examples, whose: str) -> Examples:
    """These samples by their own numbers."""
    return scaled_examples(held, scaling_of(held.x, whose)) if len(held) else held


def standardised_open(x: NDArray[Any]) -> NDArray[np.float32]:
    """Open samples by their own numbers, which come out the same for everybody."""
    return scaling_of(x, "the open set").apply(x)


def standardise_clients(clients: ClientData, local_test: ClientData | None, names: Sequence[str] | None = None) -> None:
    """Each client's features, in place, by its samples for training; its local test by the same numbers.

    `names` are for whoever may see them: a site tells numbers alone.
    """
    names = ClientNames(len(clients)) if names is None else names
    for client in np.flatnonzero(clients.sizes).tolist():
        rows = clients.rows_of(client)
        scaling = scaling_of(clients.x[rows], one_line(names[client])[:100])
        held = rows if local_test is None else np.concatenate([rows, local_test.rows_of(client)])
        clients.x[held] = scaling.apply(clients.x[held])


def standardised_on_demand(clients: ClientsOnDemand) -> ClientsOnDemand:
    """The same of clients that are loaded when they are asked for; their sizes are known before."""
    for client in np.flatnonzero((clients.sizes > 0) & (clients.sizes < MIN_SAMPLES)).tolist():
        _check_spread(int(clients.sizes[client]), f"client {client}")
    load = clients.load
    return replace(clients, load=lambda client: standardised(load(client), f"client {client}"))


def server_scaling(reference: Examples | None, test: Examples | None) -> Affine | None:
    """What the server scores by: the numbers of its reference set, else of its test set. None if it holds neither."""
    if reference is not None and len(reference):
        return scaling_of(reference.x, "the reference set")
    return scaling_of(test.x, "the test set") if test is not None and len(test) else None


def _check_spread(samples: int, whose: str, advice: str = WITHOUT) -> None:
    if samples < MIN_SAMPLES:
        raise DataError(
            f"{whose} has {samples} sample{'' if samples == 1 else 's'}, and encode.scale = 'standard' takes means and "
            f"deviations of at least {MIN_SAMPLES}; {advice}"
        )
