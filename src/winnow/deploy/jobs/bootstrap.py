"""How a job's process begins and ends, at the server and at a site alike."""

import io
import os
import runpy
import socket
import sys
import tomllib
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from winnow.core import ConfigError, DataError, WinnowError
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle
from winnow.deploy.jobs.ipc_channel import Channel
from winnow.deploy.jobs.parent_channel import ParentChannel, StopRequestedError
from winnow.deploy.sandbox.seccomp import die_with_parent
from winnow.experiment.execution_context import ExecutionContext, enter_context

Incoming = TypeVar("Incoming", bound=msgspec.Struct)

CODE_FOLDER = "code"
"""The folder of the job's own files, inside its own."""


def open_parent_channel(descriptor: int, incoming: Any, ends: Any) -> ParentChannel[Any]:
    """The line to the parent, whose end of it this process was started with. The process ends with its parent."""
    with suppress(OSError, AttributeError):  # not on Linux: then it ends when it next listens
        die_with_parent()
    return ParentChannel(Channel(socket.socket(fileno=descriptor), incoming), ends=ends)


class LineForwarder(io.TextIOBase):
    """What a program prints, line by line."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say, self._begun = say, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)


SEE_SITE_LOG = "the site's log says more"


_noting: list[Callable[[str], object]] = []


def set_private_log(note: Callable[[str], object]) -> None:
    """From now on, what is not for others is told this way."""
    _noting[:] = [note]


def redacted_error(error: Exception) -> str:
    """What a site tells others of something that went wrong there: nothing that may quote its data. It notes the rest
    for itself.
    """
    text = f"{type(error).__name__}: {error}"
    for note in _noting or [lambda line: print(line, file=sys.stderr)]:
        note(text)
    if isinstance(error, WinnowError) and not isinstance(error, DataError):
        return str(error)
    what = "its data cannot be used as its configuration says" if isinstance(error, DataError) else type(error).__name__
    return f"{what}; {SEE_SITE_LOG}"


def run_job(
    bundle_path: Path, folder: Path, place: ExecutionContext, tell: Callable[[Exception], str] = str
) -> str | None:
    """Take part in a job; why it cannot be done, as one line, or None if it was. `tell` says what an error's is."""
    try:
        bundle = read_bundle(bundle_path.read_bytes())
        own = folder / CODE_FOLDER
        bundle.write_files(own)
        os.chdir(folder)
        if bundle.main:
            enter_context(place)
            sys.path.insert(0, str(own))
            sys.argv = [str(own / bundle.main)]
            runpy.run_path(str(own / bundle.main), run_name="__main__")
        else:
            _as_configured(bundle, own, place)
    except StopRequestedError:
        raise
    except WinnowError as error:
        return tell(error)
    except SystemExit as leaving:
        return None if leaving.code in (None, 0) else tell(ConfigError("the job's program left early"))
    except Exception as error:
        traceback.print_exc()  # for the log of whoever runs this process
        return f"{type(error).__name__} in {_where(error)}: {tell(error)}".splitlines()[0]
    return None


def _as_configured(bundle: Bundle, own: Path, place: ExecutionContext) -> None:
    """The experiment that the configuration describes; plugins and a model's factory are files that the job brings."""
    from winnow.config.resolve import experiment_from_table  # noqa: PLC0415 - a program without torch need not load it
    from winnow.experiment.setup import DEFAULT_INPUTS  # noqa: PLC0415

    table = tomllib.loads(bundle.config)
    table["plugins"] = [str(own / name) for name in table.get("plugins", [])]
    if "factory" in table.get("model", {}):
        table["model"]["factory"] = str(own / table["model"]["factory"])
    place.run_experiment(experiment_from_table(table, "the job's configuration"), DEFAULT_INPUTS, lambda event: None)


def _where(error: Exception) -> str:
    """The line of code at which something went wrong."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
