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
from winnow.deploy.fence.seccomp import die_with_parent
from winnow.deploy.work.bundle import Bundle, read_bundle
from winnow.deploy.work.channel import Channel
from winnow.deploy.work.line import HaltedError, Line
from winnow.experiment.place import Place, take

Incoming = TypeVar("Incoming", bound=msgspec.Struct)

CODE = "code"
"""The folder of the job's own files, inside its own."""


def open_line(descriptor: int, incoming: Any, ends: Any) -> Line[Any]:
    """The line to the parent, whose end of it this process was started with. The process ends with its parent."""
    with suppress(OSError, AttributeError):  # not on Linux: then it ends when it next listens
        die_with_parent()
    return Line(Channel(socket.socket(fileno=descriptor), incoming), ends=ends)


class Spoken(io.TextIOBase):
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


UNSAID = "the site's log says more"


_noting: list[Callable[[str], object]] = []


def note_by(note: Callable[[str], object]) -> None:
    """From now on, what is not for others is told this way."""
    _noting[:] = [note]


def told_outside(error: Exception) -> str:
    """What a site tells others of something that went wrong there: nothing that may quote its data. It notes the rest
    for itself.
    """
    text = f"{type(error).__name__}: {error}"
    for note in _noting or [lambda line: print(line, file=sys.stderr)]:
        note(text)
    if isinstance(error, WinnowError) and not isinstance(error, DataError):
        return str(error)
    what = "its data cannot be used as its configuration says" if isinstance(error, DataError) else type(error).__name__
    return f"{what}; {UNSAID}"


def perform(bundle_path: Path, folder: Path, place: Place, tell: Callable[[Exception], str] = str) -> str | None:
    """Take part in a job; why it cannot be done, as one line, or None if it was. `tell` says what an error's is."""
    try:
        bundle = read_bundle(bundle_path.read_bytes())
        own = folder / CODE
        bundle.write_files(own)
        os.chdir(folder)
        if bundle.main:
            take(place)
            sys.path.insert(0, str(own))
            sys.argv = [str(own / bundle.main)]
            runpy.run_path(str(own / bundle.main), run_name="__main__")
        else:
            _as_configured(bundle, own, place)
    except HaltedError:
        raise
    except WinnowError as error:
        return tell(error)
    except SystemExit as leaving:
        return None if leaving.code in (None, 0) else tell(ConfigError("the job's program left early"))
    except Exception as error:
        traceback.print_exc()  # for the log of whoever runs this process
        return f"{type(error).__name__} in {_where(error)}: {tell(error)}".splitlines()[0]
    return None


def _as_configured(bundle: Bundle, own: Path, place: Place) -> None:
    """The experiment that the configuration describes; plugins and a model's factory are files that the job brings."""
    from winnow.experiment.resolve import check  # noqa: PLC0415 - a program without torch need not load it
    from winnow.experiment.run import AS_CONFIGURED  # noqa: PLC0415

    table = tomllib.loads(bundle.config)
    table["plugins"] = [str(own / name) for name in table.get("plugins", [])]
    if "factory" in table.get("model", {}):
        table["model"]["factory"] = str(own / table["model"]["factory"])
    place.execute(check(table, "the job's configuration"), AS_CONFIGURED, lambda event: None)


def _where(error: Exception) -> str:
    """The line of code at which something went wrong."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
