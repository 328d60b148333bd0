"""Several algorithms over several seeds, side by side."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from io import StringIO
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from winnow.config.resolve import algorithm_names, resolve
from winnow.config.schema import Experiment
from winnow.core import ConfigError, RunError
from winnow.explain.report_with_privacy import write_reports
from winnow.learn.algorithm import Algorithm
from winnow.report import (
    Cells,
    ComparisonRow,
    PairedDifference,
    comparison_cells,
    comparison_table,
    difference_cells,
    paired_differences,
)
from winnow.report.markup import bullet_list, html_table
from winnow.runs import MetricReading, RunView, Summary, file_names
from winnow.runs.atomic_write import one_line_errors, warn_if_unwritten, write_text_atomically
from winnow.runs.output_file import check_output
from winnow.terminal_tables import table

if TYPE_CHECKING:
    import plotly.graph_objects as go

DEFAULT_ALGORITHMS = ("fedprof", "fedavg-rp")
CUSTOM_ALGORITHM = "custom"
SCHEMA_VERSION = 1
WIDE_TERMINAL_COLUMNS = 120
"""Terminals from this width on show all columns."""
DIFFERENCES_TITLE = "Paired by seed: mean difference ± its standard error"
WIDE_COLUMNS = ("Sustained rounds", "Wh to target")
"""Those that others have no room for."""


def experiment_grid(
    config: str | Path | Mapping[str, Any],
    *,
    algorithms: str | Iterable[str | Algorithm] = DEFAULT_ALGORITHMS,
    seeds: int | Sequence[int] = 3,
    sets: Iterable[str] = (),
    **options: Any,
) -> list[Experiment]:
    """Each algorithm with each seed, all checked before the first one runs; `seeds = 3` stands for 0, 1 and 2.

    Algorithms are names, also as one text with commas between them, or composed of parts.
    """
    wanted = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    rivals, overrides = split_commas(algorithms) if isinstance(algorithms, str) else list(algorithms), tuple(sets)
    names = [CUSTOM_ALGORITHM if isinstance(each, Algorithm) else each for each in rivals]
    for what, values in (("algorithms", names), ("seeds", wanted)):
        if not values:
            raise ConfigError(f"{what}: give at least one")
        if len(set(values)) < len(values):
            raise ConfigError(f"{what}: {', '.join(map(str, values))} contains a duplicate")
    return [
        with_algorithm(config, algorithm, sets=overrides, **{**options, "seed": seed})
        for algorithm in rivals
        for seed in wanted
    ]


def all_algorithms_grid(
    config: str | Path | Mapping[str, Any], *, plugins: Iterable[str | Path] = (), **options: Any
) -> tuple[list[Experiment], dict[str, str]]:
    """Every known algorithm with each seed; and those that the experiment rules out, with the reason."""
    experiments, refused = list[Experiment](), dict[str, ConfigError]()
    for name in algorithm_names(config, plugins):
        try:
            experiments += experiment_grid(config, algorithms=[name], plugins=plugins, **options)
        except ConfigError as error:
            refused[name] = error
    if not experiments:
        raise next(iter(refused.values()))
    return experiments, {name: str(error) for name, error in refused.items()}


def with_algorithm(
    config: str | Path | Mapping[str, Any], algorithm: str | Algorithm | None, **options: Any
) -> Experiment:
    """The experiment with an algorithm by name or composed of parts."""
    if not isinstance(algorithm, Algorithm):
        return resolve(config, algorithm=algorithm, **options)
    return resolve(config, **{**options, **vars(algorithm)}).model_copy(update={"algorithm": CUSTOM_ALGORITHM})


def split_commas(text: str) -> list[str]:
    """The words of a list with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def run_folder_path(experiment: Experiment, out: Path) -> Path:
    """Where a run of a comparison lives."""
    return out / f"{experiment.algorithm}-seed{experiment.seed}"


def open_comparison_folder(folder: Path, *, resume: bool) -> None:
    """Create the folder of a comparison; one that holds something is only taken to resume what is in it."""
    with one_line_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not resume and any(folder.iterdir()):
            raise RunError(f"{folder} is not empty; continue what is in it with --resume or choose another --out")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What one run achieved; None where the target was not reached."""

    algorithm: str
    seed: int
    best: float | None
    last: float | None
    test_best: float | None
    rounds_to_target: int | None
    rounds_to_sustained_target: int | None
    seconds_to_target: float | None
    wh_to_target: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """The runs that were finished, and what became of the others."""

    runs: tuple[RunView, ...]
    failures: tuple[str, ...] = ()

    @cached_property
    def summaries(self) -> tuple[Summary, ...]:
        return tuple(run.summary() for run in self.runs)

    @property
    def records(self) -> list[RunRecord]:
        """One record a run."""
        return [_record(run, summary) for run, summary in zip(self.runs, self.summaries, strict=True)]

    def table(self) -> list[ComparisonRow]:
        """One row an algorithm: means and standard deviations over the seeds."""
        labelled = zip((run.label.algorithm for run in self.runs), self.summaries, strict=True)
        return comparison_table(labelled)

    def differences(self) -> list[PairedDifference]:
        """Each algorithm minus the first, paired by seed: means and their standard errors."""
        return paired_differences(
            (run.label.algorithm, run.label.seed, summary)
            for run, summary in zip(self.runs, self.summaries, strict=True)
        )

    def ranked(self) -> "Comparison":
        """The same with the algorithm of the best mean first; those that were never evaluated come last."""
        sign = -1 if self.runs and self.runs[0].label.lower_is_better else 1
        scores = {row.algorithm: sign * row.best.mean if row.best else -inf for row in self.table()}
        return replace(self, runs=tuple(sorted(self.runs, key=lambda run: -scores[run.label.algorithm])))

    def plot(self, metric: str | None = None, *, over: str = "round") -> "go.Figure":
        """The metric of all runs, or another by its name, over "round", "time" or "energy": thin lines are seeds."""
        from winnow.report.notebook_plots import plot_metric  # noqa: PLC0415 - Plotly takes a while to import

        return plot_metric(self.runs, metric, over)

    def report(self, path: str | Path) -> Path:
        """Write the joint report, one file that opens offline."""
        check_output(Path(path), ".html")
        return write_reports(Path(path), self.runs)

    def write(self, folder: Path) -> None:
        """Put the table and the joint report into the comparison's folder; the runs are there already."""
        remedy = "the runs are finished; repeat the comparison with --resume (resume=True in Python)"
        with warn_if_unwritten("the table", remedy):
            self.save(folder / file_names.COMPARISON)
        with warn_if_unwritten("the report", remedy):
            write_reports(folder / file_names.REPORT, self.runs)

    def save(self, path: Path) -> None:
        """Write the records and the table as JSON."""
        content = {
            "schema": SCHEMA_VERSION,
            "records": [asdict(record) for record in self.records],
            "table": [asdict(row) for row in self.table()],
            "differences": [asdict(each) for each in self.differences()],
            "failures": self.failures,
        }
        with one_line_errors(path):
            write_text_atomically(path, json.dumps(content, indent=2) + "\n")

    def rendered(self, *, wide: bool) -> Table:
        """The table for a terminal of 80 columns, or for a wide one."""
        return rendered_comparison(*self._cells(), wide=wide)

    def rendered_differences(self) -> Table | None:
        """The paired differences for a terminal; None where no two algorithms have run with the same seed."""
        label, differences = self.runs[0].label, self.differences()
        if not differences:
            return None
        header, lines = difference_cells(differences, label.metric, label.target)
        return table([title.replace(" ", "\n", 1) for title in header], lines)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from winnow.report.notebook_plots import metric_chart  # noqa: PLC0415 - Plotly takes a while to import

        label, differences = self.runs[0].label, self.differences()
        shown = html_table(f"{label.name}: means over seeds", *self._cells())
        if differences:
            shown += html_table(DIFFERENCES_TITLE, *difference_cells(differences, label.metric, label.target))
        return shown + metric_chart(self.runs) + bullet_list(self.failures)

    def _cells(self) -> tuple[Cells, list[Cells]]:
        label = self.runs[0].label
        return comparison_cells(self.table(), label.metric, label.target)

    def __repr__(self) -> str:
        text, differences = StringIO(), self.rendered_differences()
        console = Console(file=text, width=WIDE_TERMINAL_COLUMNS, no_color=True, force_jupyter=False)
        console.print(self.rendered(wide=True))
        if differences is not None:
            console.print(f"\n{DIFFERENCES_TITLE}", differences, sep="\n")
        return text.getvalue()


def rendered_comparison(header: Cells, lines: Sequence[Cells], *, wide: bool) -> Table:
    """A comparison's table for a terminal of 80 columns, which has no room for all of it, or for a wide one."""
    shown = [index for index, title in enumerate(header) if wide or title not in WIDE_COLUMNS]
    titles = [header[index].replace(" ", "\n", 1) for index in shown]
    return table(titles, ([cells[index] for index in shown] for cells in lines))


def _record(run: RunView, summary: Summary) -> RunRecord:
    return RunRecord(
        algorithm=run.label.algorithm,
        seed=run.label.seed,
        best=_value(summary.best),
        last=_value(summary.last),
        test_best=_value(summary.test_best),
        rounds_to_target=summary.rounds_to_target,
        rounds_to_sustained_target=summary.rounds_to_sustained_target,
        seconds_to_target=summary.seconds_to_target,
        wh_to_target=summary.wh_to_target,
    )


def _value(reading: MetricReading | None) -> float | None:
    return reading.value if reading else None
