"""What is said beside tables 1 to 3, all of it worked out from the lines of their runs."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from winnow.papers.fedprof.table_cells import COLUMNS, TableCell, TableColumn, compact_spread_text
from winnow.papers.fedprof.table_row import table_row
from winnow.papers.page_blocks import TableBlock
from winnow.papers.result_json_lines import RunResultLine, SelectionCounts
from winnow.report import MeanAndSd
from winnow.report.number_format import MISSING
from winnow.report.paired_differences import MeanAndError, difference_text

CLEAN = "clean"


def not_first(ours: str, places: Iterable[int], cells: Mapping[str, Sequence[TableCell]]) -> list[str]:
    """In which columns others are ahead of `ours`, and who they are; to be said before anything else."""
    said = []
    for place in places:
        own = cells[ours][place]
        if own.runs and (ahead := _ahead_of(own, {name: row[place] for name, row in cells.items()})):
            texts = [f"{table_row(name).title} {cell.text}" for name, cell in (*ahead, (ours, own))]
            said.append(f"{own.column.title} ({', '.join(texts)})")
    return [f"{table_row(ours).title} is not first in {'; '.join(said)}."] if said else []


def _ahead_of(own: TableCell, cells: Mapping[str, TableCell]) -> list[tuple[str, TableCell]]:
    """Those with a better mean, the best first; where our runs do not all have the quantity, all whose runs do."""
    means = {name: cell.ours.mean for name, cell in cells.items() if cell.complete and cell.ours}
    direction = -1 if own.column.higher_is_better else 1
    worst = direction * own.ours.mean if own.complete and own.ours else np.inf
    names = sorted(
        (name for name in means if direction * means[name] < worst), key=lambda name: direction * means[name]
    )
    return [(name, cells[name]) for name in names]


def differences_table(ours: str, target: float, runs: Mapping[str, Sequence[RunResultLine]]) -> list[TableBlock]:
    """Every algorithm minus `ours`, over the seeds that both have; none where there are no such seeds."""
    own = {run.seed: run for run in runs[ours]}
    rows = []
    for name, others in runs.items():
        pairs = [(run, own[run.seed]) for run in others if run.seed in own]
        if name == ours or not pairs:
            continue
        as_long = [(run, ours) for run, ours in pairs if run.rounds == ours.rounds]
        differences = [_difference(as_long if column.higher_is_better else pairs, column, target) for column in COLUMNS]
        rows.append([f"{table_row(name).title} ({len(pairs)})", *differences])
    caption = (
        f"Minus {table_row(ours).title}, paired by seed: mean difference ± its standard error; number of pairs in"
        " brackets. Scores of runs that lasted equally long; rounds, minutes and Wh where both reached the target."
    )
    return [TableBlock(caption, ["Algorithm", *(column.title for column in COLUMNS)], rows)] if rows else []


def lasted_differently(runs: Mapping[str, Sequence[RunResultLine]]) -> bool:
    """Whether scores of a group do not compare, because some of its runs ended earlier than others."""
    return len({run.rounds for each in runs.values() for run in each}) > 1


def common_rounds_table(ours: str, runs: Mapping[str, Sequence[RunResultLine]]) -> list[TableBlock]:
    """The best scores of as many rounds as every run of a group has, where their lengths differ."""
    if not lasted_differently(runs):
        return []
    shared = min(run.rounds for each in runs.values() for run in each)
    best = {name: {run.seed: _best_until(run, shared) for run in each} for name, each in runs.items() if each}
    rows = [
        [
            f"{table_row(name).title} ({len(scores)})",
            compact_spread_text(MeanAndSd.of(scores.values()), 3),
            MISSING
            if name == ours
            else difference_text(
                MeanAndError.of((score, best.get(ours, {}).get(seed)) for seed, score in scores.items()), 4
            ),
        ]
        for name, scores in best.items()
    ]
    caption = (
        "Runs of this group lasted differently long, so that their best scores do not compare. Best of the first"
        f" {shared} rounds, which all of them have, and that minus {table_row(ours).title}'s, paired by seed."
    )
    return [TableBlock(caption, ["Algorithm", f"Best of {shared} rounds", f"Minus {table_row(ours).title}"], rows)]


def _best_until(run: RunResultLine, rounds: int) -> float | None:
    return max((value for value in run.trace[: rounds + 1] if value is not None), default=None)


def _difference(pairs: Iterable[tuple[RunResultLine, RunResultLine]], column: TableColumn, target: float) -> str:
    values = ((column.value(other, target), column.value(own, target)) for other, own in pairs)
    return difference_text(MeanAndError.of(values), column.decimals + 1)


def selections_table(runs: Mapping[str, Sequence[RunResultLine]]) -> list[TableBlock]:
    """How often clients of each condition were selected, relative to clean ones; of the runs that tell."""
    counted = {name: [run.counts for run in each if run.counts] for name, each in runs.items()}
    conditions = list(
        dict.fromkeys(
            label for each in counted.values() for counts in each for label in counts.labels if label != CLEAN
        )
    )
    rows = [
        [f"{table_row(name).title} ({len(each)})", *(_relative(each, condition) for condition in conditions)]
        for name, each in counted.items()
        if each
    ]
    caption = "Times that a client was selected, relative to a clean one; runs that count them in brackets."
    return [TableBlock(caption, ["Algorithm", *conditions], rows)] if conditions else []


def _relative(counts: Sequence[SelectionCounts], condition: str) -> str:
    shares = [selection_rate(each, condition) / clean for each in counts if (clean := selection_rate(each, CLEAN))]
    return compact_spread_text(MeanAndSd.of(shares), 2) if shares else MISSING


def selection_rate(counts: SelectionCounts, condition: str) -> float:
    """How often a client of a condition was selected, on average."""
    if condition not in counts.labels:
        return 0.0
    members = np.array(counts.condition) == counts.labels.index(condition)
    return float(np.array(counts.selections)[members].mean()) if members.any() else 0.0
