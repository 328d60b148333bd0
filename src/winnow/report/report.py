"""One self-contained HTML file about a run, or about several runs side by side."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from winnow.core import Rejected, RunError
from winnow.core.join_names import listed
from winnow.report import fairness, figures, model_quality, tables
from winnow.report.client_section import WhyNotAssessed, client_quality_section, no_reason
from winnow.report.html_page import page
from winnow.report.leaves_section import leaves_section
from winnow.report.markup import (
    collapsible,
    figure_html,
    html_table,
    paragraph,
    section,
    side_by_side,
    subheading,
)
from winnow.report.plot_data import Groups, RunPlotData
from winnow.report.privacy_section import ExplainPrivacy, no_explanation, privacy_section
from winnow.report.run_groups import group_by_experiment
from winnow.report.summary_section import NAMED_UP_TO, common_target, summary_section
from winnow.runs import RunLabel, RunView
from winnow.runs.atomic_write import one_line_errors, write_text_atomically
from winnow.runs.summary import EVALUATED_BY_TEXT, abandoned_text

REASONS_SHOWN = 20
NAMES_IN_CELL = 3


def write_report(
    path: Path,
    runs: Sequence[RunView],
    explain: ExplainPrivacy = no_explanation,
    why_not_assessed: WhyNotAssessed = no_reason,
) -> Path:
    """Write the report of these runs to `path`, whole or not at all; `explain` says what a run means for privacy, and
    `why_not_assessed` why nothing is known of its clients' data.
    """
    check_one_metric(runs)
    text = page(*report_parts(group_by_experiment(runs), explain, why_not_assessed))
    with one_line_errors(path):
        write_text_atomically(path, text)
    return path


def check_one_metric(runs: Sequence[RunView]) -> None:
    """Refuse what no report can have: no run, or runs that are not evaluated by the same metric."""
    if not runs:
        raise RunError("no runs given; name at least one run folder")
    metrics = sorted({run.label.metric for run in runs})
    if len(metrics) > 1:
        raise RunError(f"runs with different metrics ({', '.join(metrics)}) cannot share a report; write one for each")


def report_parts(
    groups: Groups, explain: ExplainPrivacy = no_explanation, why_not_assessed: WhyNotAssessed = no_reason
) -> tuple[str, str, str]:
    """The title of a report, the line below it, and its sections."""
    private = partial(privacy_section, explain=explain)
    clients = partial(client_quality_section, why_not_assessed=why_not_assessed)
    alone = sum(map(len, groups.values())) == 1  # of several runs, how they compare comes first
    sections: list[Callable[[Groups], str]] = [
        *([clients] if alone else []),
        summary_section,
        _progress,
        leaves_section,
        model_quality.losses_section,
        model_quality.classes_section,
        model_quality.clients_section,
        model_quality.pseudo_labels_section,
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
    return _title(groups), _lead(groups), "".join(part(groups) for part in sections)


def _title(groups: Groups) -> str:
    names = sorted({run.label.name for runs in groups.values() for run in runs})
    rivals = " vs ".join(groups) if len(groups) <= NAMED_UP_TO else f"{len(groups)} algorithms"
    return f"{', '.join(names)}: {rivals}"


def _lead(groups: Groups) -> str:
    runs = [run for group in groups.values() for run in group]
    label, seeds = runs[0].label, sorted({run.label.seed for run in runs})
    target = common_target(runs)
    aim = "" if target is None else f", target {target:g}"
    seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    return (
        f"Up to {max(run.summary.rounds for run in runs)} rounds, {seed_text}. "
        f"Evaluated by {label.metric}{_direction(label)} {_evaluated_how(groups)}{aim}."
    )


def _direction(label: RunLabel) -> str:
    return " (lower is better)" if label.lower_is_better else ""


def _evaluated_how(groups: Groups) -> str:
    """On whose data, in words; by algorithm where that differs."""
    of = {algorithm: EVALUATED_BY_TEXT[runs[0].label.evaluated_by] for algorithm, runs in groups.items()}
    if len(set(of.values())) == 1:
        return next(iter(of.values()))
    return "; ".join(f"{algorithm} {how}" for algorithm, how in of.items())


# The sections, in order ---------------------------------------------------------------------------------------------


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
