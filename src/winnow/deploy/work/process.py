"""How a job's process begins and ends, at the server and at a site alike."""

import io
import os
import runpy
import socket
import sys
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from winnow.core import WinnowError
from winnow.deploy.work.bundle import Bundle, read_bundle
from winnow.deploy.work.channel import Channel
from winnow.deploy.work.line import HaltedError, Line
from winnow.experiment.place import Place, take
from winnow.experiment.resolve import check
from winnow.experiment.run import AS_CONFIGURED
from winnow.experiment.schema import Experiment

Incoming = TypeVar("Incoming", bound=msgspec.Struct)

CODE = "code"
"""The folder of the job's own files, inside its own."""


def open_line(descriptor: int, incoming: Any, ends: Any) -> Line[Any]:
    """The line to the parent, whose end of it this process was started with."""
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


def perform(bundle_path: Path, folder: Path, place: Place) -> str | None:
    """Take part in a job; why it cannot be done, as one line, or None if it was."""
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
            place.execute(experiment_of(bundle, own), AS_CONFIGURED, lambda event: None)
    except HaltedError:
        raise
    except WinnowError as error:
        return str(error)
    except SystemExit as leaving:
        return None if leaving.code in (None, 0) else f"the job's program left with {leaving.code!r}"
    except Exception as error:
        traceback.print_exc()  # for the log of whoever runs this process
        return f"{type(error).__name__} in {_where(error)}: {error}".splitlines()[0]
    return None


def experiment_of(bundle: Bundle, own: Path) -> Experiment:
    """The experiment that a job's configuration describes; its plugins are files that it brings."""
    table = tomllib.loads(bundle.config)
    table["plugins"] = [str(own / name) for name in table.get("plugins", [])]
    if "factory" in table.get("model", {}):
        table["model"]["factory"] = str(own / table["model"]["factory"])
    return check(table, "the job's configuration")


def _where(error: Exception) -> str:
    """The line of code at which something went wrong."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
