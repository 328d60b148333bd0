"""From a configuration to a data set."""

from pathlib import Path

from winnow.core import DataError
from winnow.data.arrays import DataSet, Raw
from winnow.data.download import Progress
from winnow.data.folders import data_directories, fetch_set, find
from winnow.data.known import KnownSet, known
from winnow.data.on_demand import OnDemand, from_folder
from winnow.data.own import check_file, read_own
from winnow.data.scaling import Scaling, finish, standard, unscaled
from winnow.data.settings import COLUMNS, DataSettings


def load(
    settings: DataSettings, directory: Path | None = None, on_progress: Progress | None = None
) -> DataSet | OnDemand:
    """The data that the settings name, scaled; a known set that is not on this machine is downloaded.

    A folder with a file a client stays unread but for the sizes.
    """
    check_source(settings)
    try:
        return _load(settings, directory, on_progress)
    except OSError as error:
        raise DataError(f"{error.filename or 'the data'} cannot be read: {error.strerror or error}") from error


def check_source(settings: DataSettings) -> None:
    """Refuse an unknown set, a missing file or a setting without effect, before anything is read."""
    if settings.path is not None:
        check_file(settings.path, settings)
    else:
        settings.refuse((*COLUMNS, "task", "tokens"), f"the known set '{known(settings.name).name}'")


def _load(settings: DataSettings, directory: Path | None, on_progress: Progress | None) -> DataSet | OnDemand:
    if settings.path is not None and settings.path.is_dir():
        return from_folder(settings.path, settings)
    if settings.path is not None:
        raw = read_own(settings.path, settings)
        return finish(raw, settings.name, settings.scale, _default_for(raw))
    wanted = known(settings.name)
    raw = wanted.read(_folder(wanted, directory, on_progress))
    return finish(raw, wanted.name, settings.scale, wanted.scaling)


def _folder(wanted: KnownSet, directory: Path | None, on_progress: Progress | None) -> Path:
    if not wanted.layouts:
        return Path()
    return find(wanted, data_directories(directory)) or fetch_set(wanted, directory, on_progress)


def _default_for(raw: Raw) -> Scaling:
    """The user's tables are standardised, which wild values spoil less than a range; the rest is taken as it is."""
    return standard if raw.x.ndim == 2 else unscaled
