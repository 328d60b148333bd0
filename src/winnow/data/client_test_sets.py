"""Own tests from an official test split: each client is given rows of the classes that it trains on."""

import numpy as np

from winnow.core import DataError
from winnow.data.partitions import Assignment
from winnow.data.preprocessing import NO_LABEL
from winnow.data.types import DataSet, Indices


def assign_official_tests(
    dataset: DataSet, rows: Indices, offsets: Indices, spare: Indices, rng: np.random.Generator
) -> Assignment:
    """Deal out the spare rows of the official test split: client k has trained on `rows[offsets[k]:offsets[k + 1]]`.

    The rows of a class are shared out in proportion to the clients' training rows of that class, so a client's test has
    the classes of its training, about as often. No row goes to two clients.
    """
    if dataset.test_rows is None:
        raise DataError(
            f"data.local_test = 'official': {dataset.name} has no official test split; set a share such as 0.2"
        )
    if dataset.classes is None or dataset.y.ndim > 1 or (dataset.y == NO_LABEL).any():
        raise DataError("data.local_test = 'official' needs one class label per row; set a share such as 0.2")
    if not len(spare):
        raise DataError(
            "data.local_test = 'official': the server uses the whole test split; lower data.reference or data.test"
        )
    held = np.zeros((len(offsets) - 1, dataset.classes), np.int64)
    np.add.at(held, (np.repeat(np.arange(len(held)), np.diff(offsets)), dataset.y[rows].astype(np.int64)), 1)
    owner = np.full(len(spare), -1, np.int64)
    labels = dataset.y[spare]
    for label in np.flatnonzero(held.any(axis=0)):
        places = rng.permutation(np.flatnonzero(labels == label))
        owner[places] = np.repeat(np.arange(len(held)), _in_proportion(len(places), held[:, label]))
    given = np.flatnonzero(owner >= 0)
    given = given[np.argsort(owner[given], kind="stable")]
    counts = np.bincount(owner[given], minlength=len(held))
    return Assignment(rows=spare[given], offsets=np.concatenate([[0], np.cumsum(counts)]))


def _in_proportion(total: int, weights: Indices) -> Indices:
    """Whole shares of a total in proportion to the weights, rounded along their running sum: none is off by one."""
    ends = np.rint(np.cumsum(weights) * (total / weights.sum())).astype(np.int64)
    shares: Indices = np.diff(ends, prepend=0)
    return shares
