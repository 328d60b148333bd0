"""A part of one row of `winnow reproduce few-labels`, so that many cores can share a table.

    python -m bench.few_labels_part mnist-client rscfed --candidates 0 --out parts/rscfed-0
    python -m bench.few_labels_part mnist-client rscfed --seeds 0,1 --tuned parts/rscfed-{0,1,2} --out parts/rscfed

Candidates are counted from 0; each runs with every tuning seed. Runs with other seeds need the results of all
candidates, which are looked for in the folders of `--tuned` as well, and waited for. The lines of all parts together
are the row: `winnow reproduce few-labels --no-run --from parts/rscfed/results.jsonl …`. The same command continues a
part that was stopped.
"""

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

from winnow.experiment.run import run_experiment
from winnow.papers import PAPERS, PaperRun, ReproductionOptions, read_lines, write_lines
from winnow.papers.few_labels.gap_table import GapTable, candidate_name
from winnow.papers.result_json_lines import ResultLines, lines_by_key

PATIENCE_S, POLL_S = 500, 5
RESULTS = "results.jsonl"


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def known_lines(folders: Iterable[Path]) -> ResultLines:
    files = [folder / RESULTS for folder in folders]
    return lines_by_key(line for file in files if file.exists() for line in read_lines(file))


class Part:
    """The runs that the options ask for, and the lines that they have given so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        tables = {item.name: item for item in PAPERS["few-labels"].items if isinstance(item, GapTable)}
        self._table = tables[options.table]
        self._row = next(row for row in self._table.rows if row.name == options.row)
        self._lines = dict(known_lines([options.out]))

    def run(self) -> None:
        candidates = self._row.candidates or self._table.candidates
        for place in self._options.candidates:
            self._run_all(candidate_name(self._row, candidates[place]), None)
        if self._options.seeds:
            self._wait_for_the_choice()
            self._run_all(self._row.name, set(self._options.seeds))

    def _tuned(self) -> ResultLines:
        return {**known_lines(self._options.tuned), **self._lines}

    def _wait_for_the_choice(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while self._table.chosen(self._row, self._tuned()) is None:
            if time.monotonic() > until:
                raise SystemExit("candidates have no results yet; run them first")
            time.sleep(POLL_S)

    def _run_all(self, name: str, seeds: set[int] | None) -> None:
        count = max(seeds) + 1 if seeds else 1
        wanted = ReproductionOptions(seeds=count, sets=tuple(self._options.set), known=self._tuned())
        for run in self._table.runs(wanted):
            asked = run.algorithm == name and (seeds is None or run.experiment.seed in seeds)
            if asked and run.key not in self._lines:
                self._finish(run, wanted)

    def _finish(self, run: PaperRun, wanted: ReproductionOptions) -> None:
        out = self._options.out
        folder = run.folder(out)
        run_experiment(run.experiment, out=folder, resume=folder.exists(), report=False)
        self._lines[run.key] = run.line(out, wanted)
        write_lines(out / RESULTS, self._lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("row")
    parser.add_argument("--candidates", type=numbers, default=[])
    parser.add_argument("--seeds", type=numbers, default=[])
    parser.add_argument("--tuned", type=Path, nargs="*", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    Part(options).run()


if __name__ == "__main__":
    main()
