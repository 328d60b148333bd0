"""From a configuration to a data set."""

from pathlib import Path

import numpy as np

from winnow.core import DataError
from winnow.data.arrays import DataSet, Raw
from winnow.data.download import Progress
from winnow.data.folders import data_directories, fetch_set, find
from winnow.data.known import KnownSet, known
from winnow.data.own import read_own
from winnow.data.scaling import Scaling, minmax, standard, unscaled
from winnow.data.settings import DataSettings, Scale

NAMED: dict[Scale, Scaling] = {"standard": standard, "minmax": minmax, "none": unscaled}


def load(settings: DataSettings, directory: Path | None = None, on_progress: Progress | None = None) -> DataSet:
    """The data set that the settings name, scaled; a known set that is not on this machine is downloaded."""
    try:
        return _load(settings, directory, on_progress)
    except OSError as error:
        raise DataError(f"{error.filename or 'the data'} cannot be read: {error.strerror or error}") from error


def _load(settings: DataSettings, directory: Path | None, on_progress: Progress | None) -> DataSet:
    if settings.path is not None:
        path = settings.path.expanduser()
        raw = read_own(path, settings)
        return _scaled(raw, path.stem, NAMED.get(settings.scale) or _default_for(raw))
    wanted = known(settings.name)
    raw = wanted.read(_folder(wanted, directory, on_progress))
    return _scaled(raw, wanted.name, NAMED.get(settings.scale) or wanted.scaling)


def _folder(wanted: KnownSet, directory: Path | None, on_progress: Progress | None) -> Path:
    if not wanted.layouts:
        return Path()
    return find(wanted, data_directories(directory)) or fetch_set(wanted, directory, on_progress)


def _default_for(raw: Raw) -> Scaling:
    """The user's tables are brought to [0, 1], as the paper does; anything else is taken as it is."""
    return minmax if raw.x.ndim == 2 else unscaled


def _scaled(raw: Raw, name: str, scaling: Scaling) -> DataSet:
    """Features scaled, and the targets of a regression with them."""
    y = raw.y.astype(np.int64, copy=False) if raw.classes is not None else scaling(raw.y)
    return DataSet(name=name, x=scaling(raw.x), y=y, classes=raw.classes, owners=raw.owners, test_rows=raw.test_rows)
