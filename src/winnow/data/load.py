"""From a configuration to a data set."""

from pathlib import Path

from winnow.core import DataError
from winnow.data.directories import data_directories, fetch_set, find_known_set
from winnow.data.download import DownloadProgress
from winnow.data.fit_preprocessing import known_data_set
from winnow.data.known_sets import KnownSet, known_set
from winnow.data.on_demand import OnDemand, from_folder
from winnow.data.settings import COLUMN_SETTINGS, DataSettings
from winnow.data.types import DataSet
from winnow.data.user_data import check_own_file, read_own_file


def load(
    settings: DataSettings, directory: Path | None = None, on_progress: DownloadProgress | None = None
) -> DataSet | OnDemand:
    """The data that the settings name, scaled; a known set that is not on this machine is downloaded.

    A folder with a file a client stays unread but for the sizes.
    """
    check_source(settings)
    if settings.table is not None:
        raise DataError(f"table '{settings.table}' is divided among its owners already; name a file instead of a table")
    try:
        return _load(settings, directory, on_progress)
    except OSError as error:
        raise DataError(f"{error.filename or 'the data'} cannot be read: {error.strerror or error}") from error


def check_source(settings: DataSettings) -> None:
    """Refuse an unknown set, a missing file or a setting without effect, before anything is read."""
    if settings.table is not None:
        if settings.path is None or not settings.path.is_file():
            named = "data.path" if settings.path is None else str(settings.path)
            raise DataError(f"there is no file {named} that declares table '{settings.table}'; check data.path")
    elif settings.path is not None:
        check_own_file(settings.path, settings)
    else:
        settings.require_unset(
            (*COLUMN_SETTINGS, "task", "tokens", "preprocessing"), f"the known set '{known_set(settings.name).name}'"
        )


def _load(settings: DataSettings, directory: Path | None, on_progress: DownloadProgress | None) -> DataSet | OnDemand:
    if settings.path is not None and settings.path.is_dir() and settings.text is None:
        return from_folder(settings.path, settings)
    if settings.path is not None:
        return read_own_file(settings.path, settings)
    wanted = known_set(settings.name)
    raw = wanted.read(_folder(wanted, directory, on_progress))
    return known_data_set(raw, wanted.name, settings.scale, wanted.scaling, settings.text)


def _folder(wanted: KnownSet, directory: Path | None, on_progress: DownloadProgress | None) -> Path:
    if not wanted.layouts:
        return Path()
    return find_known_set(wanted, data_directories(directory)) or fetch_set(wanted, directory, on_progress)
