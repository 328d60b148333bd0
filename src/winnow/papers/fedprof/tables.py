"""Tables 1 to 3: best accuracy, and rounds, time and energy to a target, of both groups of algorithms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.learn.algorithm import Recipe
from winnow.papers.fedprof.compare_algorithms import (
    common_rounds_table,
    differences_table,
    lasted_differently,
    not_first,
    selections_table,
)
from winnow.papers.fedprof.read_bundled_toml import read_note, read_package_toml
from winnow.papers.fedprof.table_cells import COLUMNS, TableCell, compact_spread_text
from winnow.papers.fedprof.table_row import table_row
from winnow.papers.page_blocks import HeadingBlock, PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, run_result_lines
from winnow.report import MeanAndSd

AGGREGATION_GROUPS = ("full", "partial")
OURS = {"full": "fedprof-full", "partial": "fedprof"}
"""FedProf in each group."""
BEST_MARK = " ★"


@dataclass(frozen=True, kw_only=True)
class ResultTable(PaperItem):
    """One of tables 1 to 3. `settings` are those of a group where they differ from the preset's, the same for all."""

    preset: str
    target: float
    rounds: Mapping[str, int]
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    about: str
    heavy: bool = False

    @property
    def needs_gpu(self) -> bool:
        return self.heavy

    def unknown_algorithms(self) -> list[str]:
        rows = [name for group in AGGREGATION_GROUPS for name in self.values(group)]
        return [name for name in rows if table_row(name).algorithm not in Recipe.known]

    def runs(self, wanted: ReproductionOptions) -> list[PaperRun]:
        return [run for group in AGGREGATION_GROUPS for run in self.group_runs(group, wanted)]

    def group_runs(self, group: str, wanted: ReproductionOptions) -> list[PaperRun]:
        return [
            PaperRun(item=self.name, algorithm=row, experiment=self._experiment(group, row, seed, wanted))
            for row in self.values(group)
            if table_row(row).algorithm in Recipe.known
            for seed in range(wanted.seeds)
        ]

    def _experiment(self, group: str, name: str, seed: int, wanted: ReproductionOptions) -> Experiment:
        row = table_row(name)
        sets = (*self.settings.get(group, ()), *row.settings, *wanted.sets)
        rounds = wanted.rounds or self.rounds[group]
        return resolve(self.preset, sets=sets, algorithm=row.algorithm, seed=seed, rounds=rounds)

    def values(self, group: str) -> dict[str, dict[str, Any]]:
        """The paper's cells of a group, by algorithm."""
        cells: dict[str, dict[str, Any]] = read_package_toml("values.toml")[self.name][group]
        return cells

    def cells(self, group: str, lines: ResultLines) -> dict[str, tuple[TableCell, ...]]:
        return {
            algorithm: tuple(
                TableCell(
                    column=column,
                    paper=_published(cells.get(column.name)),
                    runs=tuple(column.value(run, self.target) for run in runs if column.known(run)),
                    cut_short=any(run.rounds < self.rounds[group] for run in runs),
                )
                for column in COLUMNS
            )
            for algorithm, cells in self.values(group).items()
            for runs in [run_result_lines(lines, self.name, algorithm)]
        }

    def has_results(self, lines: ResultLines) -> bool:
        return any(self._runs_of_group(group, lines) for group in AGGREGATION_GROUPS)

    def _runs_of_group(self, group: str, lines: ResultLines) -> list[RunResultLine]:
        return [run for algorithm in self.values(group) for run in run_result_lines(lines, self.name, algorithm)]

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        pieces: list[PageBlock] = [TextBlock(self.about)]
        for group in AGGREGATION_GROUPS:
            cells, ours = self.cells(group, lines), OURS[group]
            runs = {name: run_result_lines(lines, self.name, name) for name in cells}
            compares = not lasted_differently(runs)
            places = [place for place, column in enumerate(COLUMNS) if compares or not column.higher_is_better]
            leaders = {place: _leaders(place, cells) for place in places}
            longest = max((run.rounds for run in self._runs_of_group(group, lines)), default=self.rounds[group])
            caption = (
                f"Up to {longest} rounds; number of seeds in brackets; rounds, minutes and Wh to reach {self.target:g},"
                " with the number of runs that reached it if not all did. Test is the test set's score of the best"
                " model; sustained, the first round that reaches the target and is followed by five whose mean does."
                " ★ best of the group."
            )
            pieces += [
                HeadingBlock(f"{group.capitalize()} aggregation"),
                *map(TextBlock, not_first(ours, places, cells)),
                TableBlock(caption, self._header(), _rows(cells, leaders, self._lengths(group, lines))),
                *common_rounds_table(ours, runs),
                *differences_table(ours, self.target, runs),
                *selections_table(runs),
                *(
                    TextBlock(text)
                    for text in (
                        *self._not_run(group, lines),
                        *self._cut_short(group, lines),
                        *self._shortfalls(group, cells),
                        *self._besides(group, lines),
                    )
                ),
            ]
        return pieces

    def _header(self) -> list[str]:
        groups = [
            (f"{column.title}, paper", f"{column.title}, ours") if column.in_paper else (column.title,)
            for column in COLUMNS
        ]
        return ["Algorithm", *(title for group in groups for title in group)]

    def _shortfalls(self, group: str, cells: Mapping[str, Sequence[TableCell]]) -> list[str]:
        """Where we do not reach the paper's value, and why: one sentence an algorithm, one reason for those alike."""
        by_reason: dict[str, list[str]] = {}
        for algorithm, row in cells.items():
            behind = [cell.column.title for cell in row if cell.worse_than_paper]
            if behind:
                reason = "" if row[0].cut_short else read_note(self.name, group, algorithm)  # notes are on whole runs
                by_reason.setdefault(reason, []).append(f"{table_row(algorithm).title} ({', '.join(behind)})")
        return [f"Worse than in the paper: {'; '.join(said)}. {reason}".strip() for reason, said in by_reason.items()]

    def _not_run(self, group: str, lines: ResultLines) -> list[str]:
        """Rows that nobody has computed yet, where others have been."""
        missing = [name for name in self.values(group) if not run_result_lines(lines, self.name, name)]
        if not missing or not self._runs_of_group(group, lines):
            return []
        names = ", ".join(table_row(name).title for name in missing)
        return [f"Not run: {names}; `winnow reproduce fedprof {self.name}` computes what is missing."]

    def _cut_short(self, group: str, lines: ResultLines) -> list[str]:
        """Runs that were ended before their time, after which they might have become better."""
        whole, runs = self.rounds[group], self._runs_of_group(group, lines)
        ended = [run for run in runs if run.rounds < whole]
        if not ended:
            return []
        many = "All runs" if len(ended) == len(runs) else f"{len(ended)} of {len(runs)} runs"
        return [
            f"{many} stopped early, of {whole} rounds, as their rows say: the best after fewer rounds tends to be"
            " lower, and targets not reached by then do not contradict the paper's values."
        ]

    def _lengths(self, group: str, lines: ResultLines) -> dict[str, str]:
        """After how many rounds runs were ended before their time, by algorithm."""
        lengths: dict[str, set[int]] = {}
        for run in self._runs_of_group(group, lines):
            if run.rounds < self.rounds[group]:
                lengths.setdefault(run.algorithm, set()).add(run.rounds)
        return {algorithm: f"after {_range_text(rounds)}" for algorithm, rounds in lengths.items()}

    def _besides(self, group: str, lines: ResultLines) -> list[str]:
        """The energy of those who trained and were not merged, which the paper does not count; personal accuracy."""
        said = []
        for algorithm in self.values(group):
            runs, name = run_result_lines(lines, self.name, algorithm), table_row(algorithm).title
            if selected := MeanAndSd.of(run.selected_wh_to_target for run in runs):
                as_published = ", as in the paper" if self.values(group)[algorithm] else ""
                said.append(
                    f"{name}: Wh of aggregated clients{as_published}; of all selected clients, "
                    f"{compact_spread_text(selected, 2)}."
                )
            if own := MeanAndSd.of(run.local_test_best for run in runs):
                said.append(f"{name}: {compact_spread_text(own, 3)} with personalised models on local test sets.")
        return said


def _rows(
    cells: Mapping[str, Sequence[TableCell]], leaders: Mapping[int, Sequence[str]], lengths: Mapping[str, str]
) -> list[list[str]]:
    return [
        [_name(algorithm, row, lengths.get(algorithm)), *_row(algorithm, row, leaders)]
        for algorithm, row in cells.items()
    ]


def _name(algorithm: str, row: Sequence[TableCell], length: str | None) -> str:
    seeds = len(row[0].runs)
    told = f"{seeds}, {length}" if length else f"{seeds}"
    return f"{table_row(algorithm).title} ({told})" if seeds else table_row(algorithm).title


def _row(algorithm: str, row: Sequence[TableCell], leaders: Mapping[int, Sequence[str]]) -> list[str]:
    texts = []
    for place, cell in enumerate(row):
        texts += [cell.paper_text] if cell.column.in_paper else []
        texts.append(cell.text + (BEST_MARK if algorithm in leaders.get(place, ()) else ""))
    return texts


def _leaders(place: int, cells: Mapping[str, Sequence[TableCell]]) -> list[str]:
    """The best algorithms of a group among those that always have the quantity; nobody leads among one."""
    if sum(bool(row[place].runs) for row in cells.values()) < 2:
        return []
    spreads = {name: row[place].ours for name, row in cells.items() if row[place].complete}
    means = {name: spread.mean for name, spread in spreads.items() if spread}
    best = (max if COLUMNS[place].higher_is_better else min)(means.values(), default=None)
    return [name for name, mean in means.items() if mean == best]


def _published(pair: Sequence[float] | None) -> MeanAndSd | None:
    return None if pair is None else MeanAndSd(mean=pair[0], sd=pair[1], count=0)


def _range_text(rounds: set[int]) -> str:
    low, high = min(rounds), max(rounds)
    return f"{low} to {high} rounds" if low < high else f"{low} rounds" if low > 1 else "1 round"
