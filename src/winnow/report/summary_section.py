"""The summary of a report: of one run, its best value and what it took; of several, how they compare."""

from collections.abc import Sequence

from winnow.report import tables
from winnow.report.markup import card, cards, html_table, section
from winnow.report.number_format import MISSING, number_text
from winnow.report.paired_differences import difference_cells, paired_differences
from winnow.report.plot_data import Groups, RunPlotData
from winnow.report.run_groups import group_by_experiment
from winnow.runs import MetricReading, RunLabel, RunView

NAMED_UP_TO = 6
"""More algorithms than this are counted in the title rather than named, and have no cards."""


def summary_section(groups: Groups) -> str:
    runs = [run for group in groups.values() for run in group]
    if len(runs) == 1:
        return section("Summary", cards(_run_cards(runs[0])))
    rows, (header, lines) = _compared(groups)
    to_target = "; figures to the target cover the runs that reached it" if any(row.target for row in rows) else ""
    caption = f"Mean ± standard deviation over seeds{to_target}."
    few = [cards(map(_algorithm_card, rows))] if len(rows) <= NAMED_UP_TO else []
    return section("Summary", *few, html_table(caption, header, lines), *_differences(groups))


def _differences(groups: Groups) -> list[str]:
    """Experiments minus the first, where they have seeds in common."""
    runs = [(name, run) for name, group in groups.items() for run in group]
    differences = paired_differences((name, run.label.seed, run.summary) for name, run in runs)
    if not differences:
        return []
    label = runs[0][1].label
    cells = difference_cells(differences, label.metric, common_target([run for _, run in runs]))
    return [html_table("Paired by seed: mean difference ± its standard error.", *cells)]


def _compared(groups: Groups) -> tuple[list[tables.ComparisonRow], tuple[tables.Cells, list[tables.Cells]]]:
    """A row for each experiment, and the table of them."""
    runs = [run for group in groups.values() for run in group]
    rows = tables.comparison_table((name, run.summary) for name, group in groups.items() for run in group)
    return rows, tables.comparison_cells(rows, runs[0].label.metric, common_target(runs))


def comparison_of(runs: Sequence[RunView]) -> tuple[tables.Cells, list[tables.Cells]]:
    """The header and the lines of the table of a joint report: a line for each experiment, averaged over its seeds."""
    return _compared(group_by_experiment(runs))[1]


def _run_cards(run: RunPlotData) -> list[str]:
    """The best value, and what it took: to the target where there is one, and in total."""
    summary, label = run.summary, run.label
    seconds = summary.seconds_to_target
    taken: list[tuple[str, str, float | None, float]] = [("Rounds", "", summary.rounds_to_target, summary.rounds)]
    if label.clock != "none":
        minutes = None if seconds is None else seconds / 60
        taken.append((f"{label.clock.capitalize()} time", " min", minutes, summary.seconds / 60))
    if summary.wh:
        taken.append(("Energy", " Wh", summary.wh_to_target, summary.wh))
    best = card(f"Best {label.metric}", _value(summary.best), _best_note(run))
    return [best, *(_cost_card(label, title, unit, to_target, total) for title, unit, to_target, total in taken)]


def _cost_card(label: RunLabel, title: str, unit: str, to_target: float | None, total: float) -> str:
    in_all = f"{number_text(float(total))}{unit}"
    if label.target is None:
        return card(title, in_all, "in total")
    value = "not reached" if to_target is None else f"{number_text(float(to_target))}{unit}"
    return card(title, value, f"to {label.metric} {label.target:g}; {in_all} in total")


def _value(reading: MetricReading | None) -> str:
    return f"{reading.value:.4f}" if reading else MISSING


def _best_note(run: RunPlotData) -> str:
    summary = run.summary
    when = f"after round {summary.best.round}" if summary.best else "never measured"
    test = f"; {_value(summary.test_best)} on the test set" if summary.test_best else ""
    return f"{when}{test}; last {_value(summary.last)}"


def _algorithm_card(row: tables.ComparisonRow) -> str:
    _, best, _, reached, rounds, _, minutes, wh = row.cells()
    if not row.target:
        return card(row.algorithm, best, "1 run" if row.runs == 1 else f"mean of {row.runs} runs")
    spent = [f" in {rounds} rounds", *([f"{minutes} min"] if row.time else []), *([f"{wh} Wh"] if row.energy else [])]
    return card(row.algorithm, best, f"target reached by {reached}{', '.join(spent) if row.reached else ''}")


def common_target(runs: Sequence[RunPlotData]) -> float | None:
    """What all runs aim at; None where they have no target, or different ones."""
    targets = {run.label.target for run in runs}
    return targets.pop() if len(targets) == 1 else None
