"""One self-contained HTML file about a run, or about several runs side by side."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from winnow.core import RunError
from winnow.report import fairness, figures, tables
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
from winnow.report.plot_data import RunPlotData
from winnow.report.privacy_section import ExplainPrivacy, no_explanation, privacy_section
from winnow.report.run_groups import group_by_experiment
from winnow.runs import MetricReading, RunView
from winnow.runs.atomic_write import one_line_errors, write_text_atomically
from winnow.runs.summary import EVALUATED_BY_TEXT, abandoned_text

Groups: TypeAlias = Mapping[str, Sequence[RunPlotData]]
REASONS_SHOWN = 20
NAMED_UP_TO = 6
"""More algorithms than this are counted in the title rather than named, and have no cards."""


def write_report(path: Path, runs: Sequence[RunView], explain: ExplainPrivacy = no_explanation) -> Path:
    """Write the report of these runs to `path`, whole or not at all; `explain` says what a run means for privacy."""
    if not runs:
        raise RunError("no runs given; name at least one run folder")
    metrics = sorted({run.label.metric for run in runs})
    if len(metrics) > 1:
        raise RunError(f"runs with different metrics ({', '.join(metrics)}) cannot share a report; write one for each")
    groups = group_by_experiment(runs)
    private = partial(privacy_section, explain=explain)
    sections = (_headline, _progress, _fairness, _participation, _scores, _costs, private, _rejections, _configurations)
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
        f"Evaluated by {label.metric} {_evaluated_how(groups)}{aim}."
    )


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
    rows = tables.comparison_table((name, run.summary) for name, group in groups.items() for run in group)
    header, lines = tables.comparison_cells(rows, runs[0].label.metric, _common_target(runs))
    caption = "Mean ± standard deviation over seeds; figures to the target cover the runs that reached it."
    few = [cards(map(_algorithm_card, rows))] if len(rows) <= NAMED_UP_TO else []
    return section("Summary", *few, html_table(caption, header, lines))


def _run_cards(run: RunPlotData) -> list[str]:
    summary, target = run.summary, run.label.target
    goal = "no target was set" if target is None else f"to {run.label.metric} {target:g}"
    minutes = None if summary.seconds_to_target is None else summary.seconds_to_target / 60
    in_all = number_text(summary.seconds / 60)
    rounds = MISSING if summary.rounds_to_target is None else str(summary.rounds_to_target)
    shown = [
        card(f"Best {run.label.metric}", _value(summary.best), _best_note(run)),
        card("Rounds", rounds, f"{goal}; {summary.rounds} in total"),
        card(f"{run.label.clock.capitalize()} time", f"{number_text(minutes)} min", f"{goal}; {in_all} min in total"),
    ]
    if summary.wh:
        energy = f"{goal}; {number_text(summary.wh)} Wh in total"
        shown.append(card("Energy", f"{number_text(summary.wh_to_target)} Wh", energy))
    return shown


def _value(reading: MetricReading | None) -> str:
    return f"{reading.value:.4f}" if reading else MISSING


def _best_note(run: RunPlotData) -> str:
    summary = run.summary
    when = f"after round {summary.best.round}" if summary.best else "never measured"
    test = f"; {_value(summary.test_best)} on the test set" if summary.test_best else ""
    return f"{when}{test}; last {_value(summary.last)}"


def _algorithm_card(row: tables.ComparisonRow) -> str:
    _, best, _, reached, rounds, minutes, wh = row.cells()
    note = f"target reached by {reached} in {rounds} rounds, {minutes} min" + (f", {wh} Wh" if row.energy else "")
    return card(row.algorithm, best, note if row.reached else f"target reached by {reached}")


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
    """What progress is drawn against: energy only where it was counted."""
    counted = any(run.summary.wh for runs in groups.values() for run in runs)
    return list(figures.AXES)[: None if counted else -1]


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
        pieces += [html_table(caption, *tables.cost_cells(summaries)), paragraph(f"Clients {moved}.") if moved else ""]
    return section("Costs", *pieces)


def _rejections(groups: Groups) -> str:
    rows = [
        (reason, algorithm, str(run.label.seed), _span(rounds), f"{len(rounds):,}")
        for algorithm, runs in groups.items()
        for run in runs
        for reason, rounds in list(run.rejections.items())[:REASONS_SHOWN]
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
        html_table("Replies that were not aggregated.", ("Reason", "Algorithm", "Seed", "Rounds", "Times"), rows),
    )


def _span(rounds: Sequence[int]) -> str:
    """The first and the last of them."""
    return str(rounds[0]) if rounds[0] == rounds[-1] else f"{rounds[0]}–{rounds[-1]}"


def _configurations(groups: Groups) -> str:
    pieces = [
        collapsible(f"{run.label.name}, {algorithm}, seed {run.label.seed}", run.config_text)
        for algorithm, runs in groups.items()
        for run in runs
    ]
    return section("Configuration", *pieces)


def _seeds(runs: Sequence[RunPlotData]) -> str:
    return f"Seed {runs[0].label.seed}" if len(runs) == 1 else f"Mean over {len(runs)} seeds"
