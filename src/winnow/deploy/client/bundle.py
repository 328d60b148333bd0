"""From what ran in a notebook or a terminal to a job's bundle: its configuration, and the files of its own code."""

import runpy
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import tomli_w

from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.core import ConfigError, WinnowError
from winnow.core.split_factory_path import own_code_names, split_factory
from winnow.core.user_code_error import place_of_error, text_of_error
from winnow.data import DataSettings
from winnow.deploy.client.bundle_signing import sign_bundle
from winnow.deploy.jobs.bundle_format import Bundle
from winnow.deploy.trust.kit import Kit
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.execution_context import ExecutionContext, OnEvent, enter_context, leave_context
from winnow.experiment.prepare_clients import data_settings_for
from winnow.experiment.run_workflow import WorkflowSpec
from winnow.learn.collect import Collect

JOB_DATA_KEYS = ("name", "local_test")
"""All that a job says of data: where they are and how they are spread is the sites' business."""


@dataclass(frozen=True, kw_only=True)
class JobDescription:
    """What a job is about: its configuration, the data it asks for, and the files of its own code."""

    table: dict[str, Any]
    data: DataSettings
    seed: int
    files: dict[str, bytes] = field(default_factory=dict)
    main: str = ""
    collect: Collect | None = None
    """How updates are collected; None for a workflow of the user's own."""

    def check_parties(self, sites: Collection[str] | None) -> None:
        """Refuse a collection that needs another party than the sites of the job; None: nobody knows yet who comes."""
        if self.collect is not None:
            named = self.collect.third_party
            known = [named] if sites is None and named is not None else sites or ()
            self.collect.for_sites(dict.fromkeys(known, 0))

    @property
    def title(self) -> str:
        return str(self.table["name"])

    def bundle(self, kit: Kit, job: dict[str, Any]) -> Bundle:
        """Signed; `job` holds the keys of the [job] section that are to be changed."""
        settings = {**self.table.get("job", {}), **{key: value for key, value in job.items() if value is not None}}
        config = tomli_w.dumps({**self.table, "job": settings})
        return sign_bundle(kit, Bundle(config=config, files=self.files, main=self.main))


def describe_job(source: str | Path, **options: Any) -> JobDescription:
    """What a preset, a .toml file or a program asks for. `options` are those of `resolve`."""
    if Path(source).suffix != ".py":
        return _of_experiment(resolve(source, **options))
    given = [name for name, value in options.items() if value not in (None, ())]
    if given:
        raise ConfigError(f"{source} is a program; pass {', '.join(given)} to winnow.run inside it instead")
    return _of_program(Path(source))


def _of_experiment(experiment: Experiment, files: Mapping[str, bytes] | None = None, main: str = "") -> JobDescription:
    table = experiment.model_dump(mode="json", exclude_none=True)
    table["data"] = {key: value for key, value in table["data"].items() if key in _data_keys(experiment.data)}
    own = dict(files or {})
    table["plugins"] = [] if main else [_add_file(Path(plugin), own) for plugin in experiment.plugins]
    table.get("encode", {}).pop("cache", None)  # each party keeps its features where it keeps the job
    for section, key, named in own_code_names(table):
        file, name = split_factory(named)
        table[section][key] = _add_file(Path(file), own) + (f":{name}" if name else "")
    return JobDescription(
        table=table,
        data=data_settings_for(experiment),
        seed=experiment.seed,
        files=own,
        main=main,
        collect=experiment.collect,
    )


def _data_keys(data: DataSettings) -> tuple[str, ...]:
    """With a path, rows were encoded before they went to sites; otherwise sites encode their own as the job states."""
    if data.table is not None:
        return (*JOB_DATA_KEYS, "preprocessing", "table", "targets")
    return JOB_DATA_KEYS if data.path is not None else (*JOB_DATA_KEYS, "preprocessing")


def _add_file(path: Path, files: dict[str, bytes]) -> str:
    """Add a file of the user to the bundle and return its name there."""
    content = path.read_bytes()
    if files.setdefault(path.name, content) != content:
        raise ConfigError(f"the job uses two different files named {path.name}; rename one")
    return path.name


class _CapturedError(BaseException):
    """The program has asked for a run. It is no Exception, so that programs do not catch it by mistake."""

    def __init__(self, wanted: Experiment | WorkflowSpec) -> None:
        super().__init__("captured")
        self.wanted = wanted


class _CapturingContext(ExecutionContext):
    """A context in which `winnow.run` and `winnow.run_workflow` only record what they were asked to run."""

    has_data_files = True

    def run_experiment(self, experiment: Experiment, inputs: RunInputs, on_event: OnEvent) -> NoReturn:
        if inputs.dataset is not None:
            raise ConfigError(
                "the program passes data as arrays, which are not sent to sites; use a name that the sites define: "
                'winnow.run(..., data="NAME")'
            )
        raise _CapturedError(experiment)

    def run_question(self, question: object) -> NoReturn:
        raise ConfigError("a program cannot be submitted as a question; ask it with winnow.connect(KIT).ask")

    def run_workflow(self, wanted: WorkflowSpec, on_event: OnEvent) -> NoReturn:
        raise _CapturedError(wanted)


def _of_program(path: Path) -> JobDescription:
    """Run the program up to its `winnow.run`, here and with this user's rights: what it asks for, and its files."""
    if not path.is_file():
        raise ConfigError(f"file not found: {path}")
    with _own_modules(path.absolute().parent) as modules:
        wanted = _captured_request(path)
        files = {path.name: path.read_bytes(), **modules()}
    if isinstance(wanted, Experiment):
        return _of_experiment(wanted, files, path.name)
    table = {"name": path.stem, "seed": wanted.seed, "data": {"name": wanted.data.name}}
    return JobDescription(table=table, data=wanted.data, seed=wanted.seed, files=files, main=path.name)


def _captured_request(path: Path) -> Experiment | WorkflowSpec:
    enter_context(_CapturingContext())
    try:
        runpy.run_path(str(path), run_name="__main__")
    except _CapturedError as captured:
        return captured.wanted
    except SystemExit:
        pass
    except WinnowError:
        raise
    except Exception as error:  # a user's code may fail in any way
        raise ConfigError(f"{_place(error, path)}: {text_of_error(error)}") from error
    finally:
        leave_context()
    raise ConfigError(f"{path} does not call winnow.run or winnow.run_workflow; a job's program must call one of them")


def _place(error: Exception, program: Path) -> str:
    """The last line of the program, or of a module beside it, that the error went through."""
    folder = program.absolute().parent

    def is_own(file: str) -> bool:
        return _is_own_file(Path(file).absolute(), folder)

    place = place_of_error(error, is_own)
    return f"{Path(place[0]).absolute().relative_to(folder)}, line {place[1]}" if place else str(program)


@contextmanager
def _own_modules(folder: Path) -> Iterator[Callable[[], dict[str, bytes]]]:
    """The modules beside a program are imported anew, to be found out; afterwards all is as it was."""

    def beside() -> dict[str, Path]:
        return {name: file for name, module in sys.modules.items() if (file := _file_in(folder, name, module))}

    def contents() -> dict[str, bytes]:
        return {file.relative_to(folder).as_posix(): file.read_bytes() for file in beside().values()}

    before = {name: sys.modules.pop(name) for name in beside()}
    sys.path.insert(0, str(folder))
    try:
        yield contents
    finally:
        sys.path.remove(str(folder))
        for name in beside():
            del sys.modules[name]
        sys.modules.update(before)


def _file_in(folder: Path, name: str, module: object) -> Path | None:
    """The module's file, if it is the user's own: neither Winnow's nor that of an installed library."""
    file = getattr(module, "__file__", None)
    if not file or name == "__main__" or name.partition(".")[0] == "winnow":
        return None
    path = Path(file)
    return path if _is_own_file(path, folder) else None


def _is_own_file(path: Path, folder: Path) -> bool:
    own = path.is_relative_to(folder) and "site-packages" not in path.relative_to(folder).parts
    return own and path.suffix == ".py"
