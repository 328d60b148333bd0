"""One self-contained HTML file about a run, or about several runs side by side."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from winnow.core import Rejected, RunError
from winnow.core.join_names import listed
from winnow.report import fairness, figures, model_quality, tables
from winnow.report.client_section import WhyNotAssessed, client_quality_section, no_reason
from winnow.report.html_page import page
from winnow.report.markup import (
    card,
    cards,
    collapsible,
    figure_html,
    html_table,
    paragraph,
    section,
    side_by_side,
    subheading,
)
from winnow.report.number_format import MISSING, number_text
from winnow.report.paired_differences import difference_cells, paired_differences
from winnow.report.plot_data import RunPlotData
from winnow.report.privacy_section import ExplainPrivacy, no_explanation, privacy_section
from winnow.report.run_groups import group_by_experiment
from winnow.runs import MetricReading, RunLabel, RunView
from winnow.runs.atomic_write import one_line_errors, write_text_atomically
from winnow.runs.summary import EVALUATED_BY_TEXT, abandoned_text

Groups: TypeAlias = Mapping[str, Sequence[RunPlotData]]
REASONS_SHOWN = 20
NAMES_IN_CELL = 3
NAMED_UP_TO = 6
"""More algorithms than this are counted in the title rather than named, and have no cards."""


def write_report(
    path: Path,
    runs: Sequence[RunView],
    explain: ExplainPrivacy = no_explanation,
    why_not_assessed: WhyNotAssessed = no_reason,
) -> Path:
    """Write the report of these runs to `path`, whole or not at all; `explain` says what a run means for privacy, and
    `why_not_assessed` why nothing is known of its clients' data.
    """
    if not runs:
        raise RunError("no runs given; name at least one run folder")
    metrics = sorted({run.label.metric for run in runs})
    if len(metrics) > 1:
        raise RunError(f"runs with different metrics ({', '.join(metrics)}) cannot share a report; write one for each")
    groups = group_by_experiment(runs)
    private = partial(privacy_section, explain=explain)
    clients = partial(client_quality_section, why_not_assessed=why_not_assessed)
    alone = len(runs) == 1  # of several runs, how they compare comes first
    sections: list[Callable[[Groups], str]] = [
        *([clients] if alone else []),
        _headline,
        _progress,
        model_quality.losses_section,
        model_quality.classes_section,
        model_quality.clients_section,
        model_quality.notes_section,
        _fairness,
        *([] if alone else [clients]),
        _participation,
        _scores,
        _costs,
        private,
        _rejections,
        _configurations,
    ]
    text = page(_title(groups), _lead(groups), "".join(part(groups) for part in sections))
    with one_line_errors(path):
        write_text_atomically(path, text)
    return path


def _title(groups: Groups) -> str:
    names = sorted({run.label.name for runs in groups.values() for run in runs})
    rivals = " vs ".join(groups) if len(groups) <= NAMED_UP_TO else f"{len(groups)} algorithms"
    return f"{', '.join(names)}: {rivals}"


def _lead(groups: Groups) -> str:
    runs = [run for group in groups.values() for run in group]
    label, seeds = runs[0].label, sorted({run.label.seed for run in runs})
    target = _common_target(runs)
    aim = "" if target is None else f", target {target:g}"
    seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    return (
        f"Up to {max(run.summary.rounds for run in runs)} rounds, {seed_text}. "
        f"Evaluated by {label.metric}{_direction(label)} {_evaluated_how(groups)}{aim}."
    )


def _direction(label: RunLabel) -> str:
    return " (lower is better)" if label.lower_is_better else ""


def _common_target(runs: Sequence[RunPlotData]) -> float | None:
    """What all runs aim at; None where they have no target, or different ones."""
    targets = {run.label.target for run in runs}
    return targets.pop() if len(targets) == 1 else None


def _evaluated_how(groups: Groups) -> str:
    """On whose data, in words; by algorithm where that differs."""
    of = {algorithm: EVALUATED_BY_TEXT[runs[0].label.evaluated_by] for algorithm, runs in groups.items()}
    if len(set(of.values())) == 1:
        return next(iter(of.values()))
    return "; ".join(f"{algorithm} {how}" for algorithm, how in of.items())


# The sections, in order ---------------------------------------------------------------------------------------------


def _headline(groups: Groups) -> str:
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
    cells = difference_cells(differences, label.metric, _common_target([run for _, run in runs]))
    return [html_table("Paired by seed: mean difference ± its standard error.", *cells)]


def _compared(groups: Groups) -> tuple[list[tables.ComparisonRow], tuple[tables.Cells, list[tables.Cells]]]:
    """A row for each experiment, and the table of them."""
    runs = [run for group in groups.values() for run in group]
    rows = tables.comparison_table((name, run.summary) for name, group in groups.items() for run in group)
    return rows, tables.comparison_cells(rows, runs[0].label.metric, _common_target(runs))


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


def _progress(groups: Groups) -> str:
    metric = next(iter(groups.values()))[0].label.metric
    against = ("rounds", f"{figures.clock(groups)} time", "energy of all devices")
    by_round, *by_cost = (
        figure_html(figures.progress(groups, axis), f"Against {what}: {metric} {_evaluated_how(groups)}")
        for axis, what in zip(_axes(groups), against, strict=False)
    )
    several = any(len(runs) > 1 for runs in groups.values())
    note = "Thin lines are single seeds. The bold line joins each round's mean cost and mean metric." if several else ""
    return section("Progress", paragraph(note) if note else "", by_round, side_by_side(*by_cost))


def _axes(groups: Groups) -> list[str]:
    """What progress is drawn against: time and energy only where they were counted."""
    runs = [run for group in groups.values() for run in group]
    if any(run.label.clock == "none" for run in runs):
        return list(figures.AXES)[:1]
    return list(figures.AXES)[: None if any(run.summary.wh for run in runs) else -1]


def _fairness(groups: Groups) -> str:
    rows = fairness.fairness_table(groups)
    if not rows:
        return ""
    metric = next(iter(groups.values()))[0].label.metric
    caption = f"Mean {metric} over clients by round; the band is from the lowest to the highest decile of clients"
    note = "Every client counts once. Values from the last evaluated round; mean ± standard deviation over seeds."
    return section(
        "Fairness across clients",
        figure_html(fairness.fairness_bands(groups), caption),
        html_table(note, fairness.fairness_header(metric), rows),
    )


def _participation(groups: Groups) -> str:
    pieces = []
    for algorithm, runs in groups.items():
        first = runs[0]
        counts = [run.participation for run in runs]
        caption = f"{algorithm}, seed {first.label.seed}: times each client was selected, grouped by data condition"
        pieces += [
            subheading(algorithm),
            figure_html(figures.participation(first.participation), caption),
            html_table(f"{_seeds(runs)}.", tables.PARTICIPATION_HEADER, tables.participation_table(counts)),
        ]
    return section("Client selection", *pieces)


def _scores(groups: Groups) -> str:
    pieces = []
    for algorithm, runs in groups.items():
        scored = next((run for run in runs if run.scores is not None), None)
        if scored is None or scored.scores is None:
            continue
        caption = (
            f"{algorithm}, seed {scored.label.seed}: selection probability of each client, "
            "relative to uniform selection; brighter is more likely"
        )
        pieces.append(figure_html(figures.score_map(scored.scores, scored.participation), caption))
    return section("Selection scores by round", *pieces) if pieces else ""


def _costs(groups: Groups) -> str:
    pieces = []
    for algorithm, runs in groups.items():
        summaries = [run.summary for run in runs]
        caption = f"{algorithm}: total over all devices, {_seeds(runs).lower()}."
        moved = "; ".join(f"{way} {much}" for way, much in tables.traffic(summaries).items())
        simulated = all(run.label.clock == "device" for run in runs)
        if simulated:
            pieces.append(html_table(caption, *tables.cost_cells(summaries)))
        if moved:
            pieces.append(paragraph(f"Clients {moved}." if simulated else f"{algorithm}: clients {moved}."))
    return section("Costs", *pieces) if pieces else ""


def _rejections(groups: Groups) -> str:
    rows = [
        (reason, _names(run, replies), algorithm, str(run.label.seed), _span(replies), f"{len(replies):,}")
        for algorithm, runs in groups.items()
        for run in runs
        for reason, replies in list(run.rejections.items())[:REASONS_SHOWN]
    ]
    if not rows:
        return section("Rejected replies", paragraph("None: all awaited replies were valid."))
    abandoned = [
        paragraph(f"{algorithm}, seed {run.label.seed}: {abandoned_text(run.summary)}.")
        for algorithm, runs in groups.items()
        for run in runs
        if run.summary.abandoned
    ]
    return section(
        "Rejected replies",
        *abandoned,
        html_table(
            "Replies that were not aggregated.", ("Reason", "Clients", "Algorithm", "Seed", "Rounds", "Times"), rows
        ),
    )


def _names(run: RunPlotData, replies: Sequence[Rejected]) -> str:
    """Whose replies these were, in the order in which they were rejected first."""
    clients = dict.fromkeys(reply.client for reply in replies)
    return listed([run.participation.client_name(client) for client in clients], NAMES_IN_CELL)


def _span(replies: Sequence[Rejected]) -> str:
    """The first and the last of their rounds."""
    first, last = replies[0].round, replies[-1].round
    return str(first) if first == last else f"{first}–{last}"


def _configurations(groups: Groups) -> str:
    pieces = [
        collapsible(f"{run.label.name}, {algorithm}, seed {run.label.seed}", run.config_text)
        for algorithm, runs in groups.items()
        for run in runs
    ]
    started = [
        (f"{algorithm}, seed {run.label.seed}", *_provenance(run.label))
        for algorithm, runs in groups.items()
        for run in runs
    ]
    known = [html_table("How the runs were started.", ("Run", "Started", "Commit", "Machine"), started)]
    return section("Configuration", *(known if any(any(row[1:]) for row in started) else []), *pieces)


def _provenance(label: RunLabel) -> tuple[str, str, str]:
    """When, from which commit and where; empty where an earlier version of Winnow did not write it."""
    started = f"{label.started[:16].replace('T', ' ')} UTC" if label.started else ""
    return started, label.commit, label.machine


def _seeds(runs: Sequence[RunPlotData]) -> str:
    return f"Seed {runs[0].label.seed}" if len(runs) == 1 else f"Mean over {len(runs)} seeds"
