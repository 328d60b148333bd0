"""How a job's process starts and ends, at the server and at a site."""

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

from winnow.core import ConfigError, DataError, ModelError, OwnCodeError, WinnowError
from winnow.core.errors import first_line
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle
from winnow.deploy.jobs.ipc_channel import Channel
from winnow.deploy.jobs.parent_channel import ParentChannel, StopRequestedError
from winnow.deploy.sandbox.seccomp import die_with_parent
from winnow.experiment.execution_context import ExecutionContext, enter_context

Incoming = TypeVar("Incoming", bound=msgspec.Struct)

CODE_FOLDER = "code"
"""The folder of the job's own files, inside its own."""


def open_parent_channel(descriptor: int, incoming: Any, ends: Any) -> ParentChannel[Any]:
    """The channel to the parent, over an inherited socket. The process ends with its parent."""
    with suppress(OSError, AttributeError):  # not on Linux: then it ends when it next listens
        die_with_parent()
    return ParentChannel(Channel(socket.socket(fileno=descriptor), incoming), ends=ends)


class LineForwarder(io.TextIOBase):
    """Forwards what a program prints, line by line."""

    def __init__(self, forward: Callable[[str], object]) -> None:
        self._forward, self._begun = forward, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._forward(line)
        return len(text)


SEE_SITE_LOG = "see the site's log"


_private_log: list[Callable[[str], object]] = []


def set_private_log(write: Callable[[str], object]) -> None:
    """Where errors go that nobody outside the site may read."""
    _private_log[:] = [write]


def redacted_error(error: Exception) -> str:
    """What others may read of an error at a site: nothing that may quote its data. The private log gets all of it."""
    text = f"{type(error).__name__}: {error}"
    for write in _private_log or [lambda line: print(line, file=sys.stderr)]:
        write(text)
    if isinstance(error, OwnCodeError):
        return f"{error.place}; {SEE_SITE_LOG}"
    if isinstance(error, ModelError) and (cause := _own_cause(error)) is not None:
        kind, quoted = type(cause).__name__, first_line(cause)
        return f"{str(error).replace(quoted, kind) if quoted in str(error) else kind}; {SEE_SITE_LOG}"
    if isinstance(error, WinnowError) and not isinstance(error, DataError):
        return str(error)
    what = "the site's data do not match its configuration" if isinstance(error, DataError) else type(error).__name__
    return f"{what}; {SEE_SITE_LOG}"


def _own_cause(error: BaseException) -> BaseException | None:
    """The error in a model or a loss of the job's own that this one quotes: it was given samples, and may tell them."""
    cause = error.__cause__
    return _own_cause(cause) if isinstance(cause, WinnowError) else cause


def run_job(
    bundle_path: Path, folder: Path, context: ExecutionContext, describe: Callable[[Exception], str] = str
) -> str | None:
    """Run a job's program or configuration; why it failed, in one line, or None. `describe` gives an error's text."""
    try:
        bundle = read_bundle(bundle_path.read_bytes())
        own = folder / CODE_FOLDER
        bundle.write_files(own)
        os.chdir(folder)
        if bundle.main:
            enter_context(context)
            sys.path.insert(0, str(own))
            sys.argv = [str(own / bundle.main)]
            runpy.run_path(str(own / bundle.main), run_name="__main__")
        else:
            _run_configured(bundle, own, context)
    except StopRequestedError:
        raise
    except WinnowError as error:
        return describe(error)
    except SystemExit as leaving:
        early = ConfigError("the job's program exited early with an error")
        return None if leaving.code in (None, 0) else describe(early)
    except Exception as error:
        traceback.print_exc()  # for the log of whoever runs this process
        return f"{type(error).__name__} in {_error_location(error)}: {describe(error)}".splitlines()[0]
    return None


def _run_configured(bundle: Bundle, own: Path, context: ExecutionContext) -> None:
    """The experiment that the configuration describes; plugins and a model's factory are files that the job brings."""
    from winnow.config.resolve import experiment_from_table  # noqa: PLC0415 - a program without torch need not load it
    from winnow.experiment.setup import DEFAULT_INPUTS  # noqa: PLC0415

    table = tomllib.loads(bundle.config)
    table["plugins"] = [str(own / name) for name in table.get("plugins", [])]
    if "factory" in table.get("model", {}):
        table["model"]["factory"] = str(own / table["model"]["factory"])
    context.run_experiment(experiment_from_table(table, "the job's configuration"), DEFAULT_INPUTS, lambda event: None)


def _error_location(error: Exception) -> str:
    """The line of code that raised the error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
