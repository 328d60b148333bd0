"""Winnow in Python: `winnow.run` and `winnow.compare`.

Keyword arguments name the sections and keys of a configuration file and are merged into it: `local={"epochs": 2}`,
`select={"fraction": 0.5}`, `metric="r2"`. As `data` is the data themselves, the keys of the [data] section are given
directly: `clients=20`, `partition={"name": "dirichlet"}`, `targets=["price"]`, `corruptions=[...]`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from pydantic import ValidationError
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import Dataset

from winnow.config.defaults import DEFAULTS
from winnow.config.schema import Experiment
from winnow.config.schema_lookup import section_with_key
from winnow.core import ConfigError, DataError, RunError, suggest
from winnow.data import DataSet, DataSettings, OnDemand, apply_settings
from winnow.data.client_files import count_clients
from winnow.data.dataframe_adapters import as_table
from winnow.data.file_formats import name_from_file, own_file_type
from winnow.data.known_sets import KNOWN_SETS
from winnow.data.user_data import MapStyleDataset, OwnData, read_torch
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.comparison import (
    DEFAULT_ALGORITHMS,
    Comparison,
    experiment_grid,
    open_comparison_folder,
    run_folder_path,
    with_algorithm,
)
from winnow.experiment.execution_context import current_context
from winnow.experiment.run import Result, run_experiment
from winnow.experiment.run_folders import stored_events, with_stored_rounds
from winnow.experiment.saved_model import load_model
from winnow.learn.algorithm import Algorithm
from winnow.learn.metrics import Metric, own_metric
from winnow.learn.models import ModelSettings
from winnow.learn.sklearn_models import is_estimator
from winnow.learn.stack import OwnLoop, OwnStep, OwnTraining
from winnow.learn.stack.user_training_functions import StepFunction, TrainFunction
from winnow.progress.encoding_display import EncodingDisplay
from winnow.progress.live_display import Progress

ConfigArgument: TypeAlias = str | Path | Mapping[str, Any] | Experiment | None
ModelArgument: TypeAlias = Any
"""A module, a model by name, its settings, or a scikit-learn estimator: of what class these are is not known here."""
LossArgument: TypeAlias = str | Callable[[Tensor, Tensor], Tensor] | None

DATA_KEYS = frozenset(DataSettings.model_fields) - frozenset(Experiment.model_fields)


load = load_model
"""`winnow.load(folder)`: a model that `result.save` wrote, or a run folder."""


def run(
    config: ConfigArgument = None,
    *,
    model: ModelArgument = None,
    data: Any = None,
    loss: LossArgument = None,
    step: StepFunction | None = None,
    train: TrainFunction | None = None,
    output: str | None = None,
    algorithm: str | Algorithm | None = None,
    seed: int | None = None,
    rounds: int | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    data_dir: str | Path | None = None,
    **settings: Any,
) -> Result:
    """Run one experiment, in memory or (with `out`) in a folder, and give its result with the best model.

    config      a preset, a .toml file, a mapping or an Experiment; sensible defaults where there is none
    model       any nn.Module (it is left as it is; the trained one is in the result), a model by name, or a
                scikit-learn estimator (SGDClassifier, LogisticRegression, Ridge, …)
    data        (x, y) arrays or tensors (x may be a tuple or dict of several inputs), a pandas or polars frame, a
                Hugging Face or torch data set, a DataSet, a .csv, .parquet or .npz file, a known set's name; an
                OnDemand or a folder with one .npz file per client, which are loaded when clients are selected
    loss        "cross-entropy", "nll", "bce", "mse", or a function that gives one loss a sample
    step        a training step of your own: step(model, batch) returns the loss of a batch
    train       a whole local training of your own: train(model, batches, context)
    output      which output is the prediction, where the model returns several
    algorithm   an algorithm by name, or an Algorithm composed of parts
    target      the value of the metric to be reached
    metric      (in settings) what decides which model is best: a name, a function of (outputs, targets) or a Metric;
                metrics=[…] are measured besides
    resume      continue the run in `out`, or begin it
    progress    show progress; by default in a terminal or a notebook
    settings    sections and keys of the configuration, see the head of this module
    """
    given = _run_arguments(model, data, loss, data_dir, settings, own=_own_training(step, train), output=output)
    options = {**given.sections, "seed": seed, "rounds": rounds, "target": target, "has_owners": given.has_owners}
    experiment = with_algorithm(_table(config), algorithm, **options)
    folder, console = None if out is None else Path(out), _console(progress)
    return _execute(experiment, given, folder, resume=resume, rounds=rounds, console=console)


def compare(
    config: ConfigArgument = None,
    *,
    algorithms: str | Iterable[str | Algorithm] = DEFAULT_ALGORITHMS,
    seeds: int | Sequence[int] = 3,
    model: ModelArgument = None,
    data: Any = None,
    loss: LossArgument = None,
    step: StepFunction | None = None,
    train: TrainFunction | None = None,
    output: str | None = None,
    rounds: int | None = None,
    target: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    data_dir: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Run several algorithms with several seeds, one run after another; arguments as in `run`.

    `algorithms` are names or an Algorithm composed of parts. All runs start from the same weights if `model` is a
    module. `seeds=3` stands for the seeds 0, 1 and 2. With `out` it writes what `winnow compare` writes: a folder for
    each run, the table and the joint report.
    """
    given = _run_arguments(model, data, loss, data_dir, settings, own=_own_training(step, train), output=output)
    options = {**given.sections, "rounds": rounds, "target": target, "has_owners": given.has_owners}
    experiments = experiment_grid(_table(config), algorithms=algorithms, seeds=seeds, **options)
    folder, console = None if out is None else Path(out), _console(progress)
    if folder is not None and current_context() is None:
        open_comparison_folder(folder, resume=resume)
    runs = []
    for each in experiments:
        own = folder and run_folder_path(each, folder)
        result = _execute(each, given, own, resume=resume, rounds=rounds, console=console, report=False)
        runs.append(result.view)
    comparison = Comparison(runs=tuple(runs))
    if folder is not None:
        comparison.write(folder)
    return comparison


@dataclass(frozen=True, kw_only=True)
class _RunArguments:
    """What was passed as objects, and what belongs into the configuration."""

    inputs: RunInputs
    data: OwnData | None
    sections: dict[str, Any]

    @property
    def has_owners(self) -> bool:
        return isinstance(self.data, DataSet) and self.data.owner_names is not None

    def inputs_for(self, experiment: Experiment) -> RunInputs:
        """What one run gets: data as its settings say, and a module of its own."""
        dataset = None if self.data is None else apply_settings(self.data, experiment.data)
        return replace(self.inputs, dataset=dataset, module=deepcopy(self.inputs.module))


def _run_arguments(
    model: Any,
    data: Any,
    loss: LossArgument,
    data_dir: str | Path | None,
    settings: Mapping[str, Any],
    *,
    own: OwnTraining | None,
    output: str | None,
) -> _RunArguments:
    settings, own_metrics = _metrics(settings)
    sections = _sections(settings)
    if model is not None:
        sections["model"] = _model_section(model)
    if output is not None:
        sections["model"] = {**_as_table(sections.get("model", {})), "output": output}
    estimator = model if is_estimator(model) else None
    if estimator is not None and own is not None:
        raise ConfigError(f"{own.keyword}: {type(model).__name__} has a training of its own; pass an nn.Module instead")
    if isinstance(loss, str):
        sections["loss"] = loss
    passed, section = _data(data)
    if section or "data" in sections:
        sections["data"] = {**section, **sections.get("data", {})}
    inputs = RunInputs(
        module=model if isinstance(model, nn.Module) else None,
        estimator=estimator,
        own=own,
        loss=None if isinstance(loss, str) else loss,
        metrics=own_metrics,
        data_directory=None if data_dir is None else Path(data_dir),
    )
    return _RunArguments(inputs=inputs, data=passed, sections=sections)


def _own_training(step: StepFunction | None, train: TrainFunction | None) -> OwnTraining | None:
    if step is not None and train is not None:
        raise ConfigError("step, train: pass one of the two; train= is the whole local training, steps included")
    if step is not None:
        return OwnStep(step)
    return None if train is None else OwnLoop(train)


def _as_table(section: Any) -> Mapping[str, Any]:
    return section.model_dump(exclude_none=True) if isinstance(section, ModelSettings) else section


def _metrics(settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Metric, ...]]:
    """The settings with metrics by name, and those metrics that were passed as functions."""
    own: dict[str, Metric] = {}

    def name(given: Any) -> str:
        if isinstance(given, str):
            return given
        metric = own_metric(given)
        if metric.name in own:
            raise ConfigError(
                f"metrics: two functions are called {metric.name!r}; name one: winnow.Metric(name, function)"
            )
        own[metric.name] = metric
        return metric.name

    named = dict(settings)
    if named.get("metric") is not None:
        named["metric"] = name(named["metric"])
    if named.get("metrics") is not None:
        several = named["metrics"]
        single = isinstance(several, str) or not isinstance(several, Iterable)
        named["metrics"] = [name(each) for each in ([several] if single else several)]
    return named, tuple(own.values())


def _model_section(model: Any) -> Any:
    """What the configuration says of a model that was passed or named."""
    if isinstance(model, nn.Module) or is_estimator(model):
        return {"name": "in-memory"}
    if isinstance(model, str):
        return {"name": model}
    if isinstance(model, Mapping | ModelSettings):
        return model
    if isinstance(model, type):
        raise ConfigError(f"model: {model.__name__} is a class; pass an instance: {model.__name__}()")
    raise ConfigError(
        f"model: {type(model).__name__} is not supported; "
        "pass an nn.Module, a scikit-learn estimator or the name of a model"
    )


def _sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as sections of a configuration."""
    known = DATA_KEYS | Experiment.model_fields.keys()
    for name in settings:
        if name not in known:
            section = section_with_key(name, Experiment)
            hint = suggest(name, known) if section is None else f"write {section}={{{name!r}: …}}"
            raise ConfigError(f"unknown setting {name!r}; {hint}")
    sections = {name: value for name, value in settings.items() if name not in DATA_KEYS}
    of_data = {name: value for name, value in settings.items() if name in DATA_KEYS}
    return {**sections, "data": of_data} if of_data else sections


def _data(data: Any) -> tuple[OwnData | None, dict[str, Any]]:
    """What was passed, and what the configuration says of it: a file that it named before does not count any more."""
    if data is None:
        return None, {}
    if isinstance(data, Mapping) and not _are_columns(data):
        return None, dict(data)
    if isinstance(data, str | Path):
        path = Path(data)
        context = current_context()
        if context is not None and not context.has_data_files:  # in a job, data are what sites have under that name
            return None, {"name": name_from_file(path) if own_file_type(path) else str(data), "path": None}
        if path.is_dir() and str(data) not in KNOWN_SETS:
            return None, {"path": str(data), "name": name_from_file(path), "clients": count_clients(path)}
        return None, {"path": str(data), "name": name_from_file(path)} if own_file_type(path) else {
            "name": str(data),
            "path": None,
        }
    if isinstance(data, DataSet):
        return data, {"name": data.name, "path": None}
    if isinstance(data, OnDemand):
        return data, {"name": data.name, "path": None, "clients": data.clients}
    if isinstance(data, tuple) and len(data) == 2:
        return data, {"name": "arrays", "path": None}
    if isinstance(data, Dataset):
        return read_torch(cast(MapStyleDataset, data), "dataset"), {"name": "dataset", "path": None}
    table = as_table(data, "frame")
    if table is not None:
        return table, {"name": "frame", "path": None}
    raise DataError(
        f"data: {type(data).__name__} is not supported; "
        "pass (x, y), a frame, a torch Dataset, a file or the name of a known data set"
    )


def _are_columns(data: Mapping[Any, Any]) -> bool:
    """Whether these are columns of data rather than settings; a column may be called `targets`, too."""
    if not data or any(not hasattr(values, "__len__") or isinstance(values, str) for values in data.values()):
        return False
    if not data.keys() <= DataSettings.model_fields.keys():
        return True
    if any(isinstance(values, Mapping) for values in data.values()) or len({*map(len, data.values())}) > 1:
        return False
    try:
        DataSettings.model_validate(dict(data))
    except ValidationError:
        return True
    return False


def _table(config: ConfigArgument) -> str | Path | Mapping[str, Any]:
    if isinstance(config, Experiment):
        return config.model_dump(exclude_none=True, exclude_unset=True)  # whether a fleet is set makes a difference
    return DEFAULTS if config is None else config


def _console(progress: bool | None) -> Console | None:
    console = Console(stderr=True, highlight=False)
    wanted = console.is_terminal or console.is_jupyter if progress is None else progress
    return console if wanted else None


def _execute(
    experiment: Experiment,
    given: _RunArguments,
    out: Path | None,
    *,
    resume: bool,
    rounds: int | None,
    console: Console | None,
    report: bool = True,
) -> Result:
    """One run, in memory or in a folder. A finished one is only read."""
    if resume and out is None:
        raise RunError("resume: give the run folder to continue with out=...")
    if resume and out is not None and rounds is None:
        experiment = with_stored_rounds(experiment, out)
    earlier = stored_events(out) if resume and out is not None else ()
    with Progress(experiment, console, earlier) as progress:
        return run_experiment(
            experiment,
            inputs=replace(given.inputs_for(experiment), on_encoded=EncodingDisplay(console)),
            out=out,
            resume=resume,
            report=report,
            on_start=progress.on_start,
            on_event=progress.on_event,
        )
