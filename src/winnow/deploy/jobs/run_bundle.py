"""Runs what a job's bundle holds, a program or a configuration, in its process at the server or at a site."""

import io
import os
import runpy
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from winnow.core import ConfigError, WinnowError
from winnow.core.split_factory_path import own_code_names
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle
from winnow.deploy.jobs.parent_channel import StopRequestedError
from winnow.experiment.execution_context import ExecutionContext, enter_context

CODE_FOLDER = "code"
"""The folder of the job's own files, inside its own."""


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


def run_job(
    bundle_path: Path, folder: Path, context: ExecutionContext, describe: Callable[[Exception], str] = str
) -> str | None:
    """Run a job's program or configuration; why it failed, in one line, or None. `describe` gives an error's text."""
    try:
        bundle = read_bundle(bundle_path.read_bytes())
        own = folder / CODE_FOLDER
        bundle.write_files(own)
        os.chdir(folder)
        if (question := bundle.question) is not None:
            _run_question(question, context)
        elif bundle.main:
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


def _run_question(section: Mapping[str, Any], context: ExecutionContext) -> None:
    from winnow.analytics.question import read_question  # noqa: PLC0415 - a training need not load it

    context.run_question(read_question(section))


def _run_configured(bundle: Bundle, own: Path, context: ExecutionContext) -> None:
    """The experiment that the configuration describes; plugins and other own code are files that the job brings."""
    from winnow.config.resolve import experiment_from_table  # noqa: PLC0415 - a program without torch need not load it
    from winnow.experiment.build_training_workflow import DEFAULT_INPUTS  # noqa: PLC0415

    table = tomllib.loads(bundle.config)
    table["plugins"] = [str(own / name) for name in table.get("plugins", [])]
    for section, key, name in own_code_names(table):
        table[section][key] = str(own / name)
    context.run_experiment(experiment_from_table(table, "the job's configuration"), DEFAULT_INPUTS, lambda event: None)


def _error_location(error: Exception) -> str:
    """The line of code that raised the error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"
