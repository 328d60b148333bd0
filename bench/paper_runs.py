"""Some of the runs of a paper's table or figure, by algorithm and seed; `winnow reproduce` makes all of them.

    python -m bench.paper_runs fedprof table3 --algorithms fedavg fedprof-full --seeds 0 1 2 --rounds 40 --out DIR

Runs that were stopped go on when the command is repeated. What is finished stands in DIR/results.jsonl, which
`winnow reproduce --from` takes; `--collect` adds what stopped runs have come to, and they still go on afterwards.
Where rows are tuned, candidates run with the seeds of tuning among `--seeds`, rows with the others. Settings may be
chosen by what other commands have in `--tuned`, for which this one waits, so that many cores can share a table:

    python -m bench.paper_runs few-labels mnist-iid --algorithms semifl@local.learning_rate=0.03 --seeds 100 --out A
    python -m bench.paper_runs few-labels mnist-iid --algorithms semifl --seeds 0 1 --tuned A/results.jsonl --out B
"""

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from bench.positive_number import positive_number
from winnow.cli.parallel_runs import run_many
from winnow.config.schema import Experiment
from winnow.core import RunError, WinnowError
from winnow.experiment.run_pool import RunSpec
from winnow.papers import PAPERS, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLine, RunResultLine, lines_by_key, read_lines, write_lines

POLL_S = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=sorted(PAPERS))
    parser.add_argument("item", help="a table or figure")
    parser.add_argument(
        "--algorithms", nargs="+", metavar="NAME", help="rows or curves, or row@candidate; default: all rows"
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=[0], help="default: 0")
    parser.add_argument("--rounds", type=positive_number, metavar="N", help="default: the paper's")
    parser.add_argument(
        "--set", dest="sets", action="append", default=[], metavar="KEY.PATH=VALUE", help="a setting of all runs"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder with the data sets; default: $WINNOW_DATA")
    parser.add_argument(
        "--workers", type=positive_number, default=1, metavar="N", help="how many runs at once; default: 1"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for results.jsonl and the run folders")
    parser.add_argument(
        "--collect", action="store_true", help="add stopped runs to the results as far as they have come"
    )
    parser.add_argument("--features", type=Path, metavar="DIR", help="a cache of frozen encoders' features")
    parser.add_argument(
        "--tuned", type=Path, nargs="*", default=[], metavar="FILE", help="results by which rows' settings are chosen"
    )
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="S", help="seconds to wait for results in --tuned; default: 0"
    )
    chosen = parser.parse_args()
    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
        Part(chosen, parser.error).run()
    except (WinnowError, OSError) as error:
        parser.error(str(error))


class Part:
    """The runs that the options ask for, and the lines that they have given so far."""

    def __init__(self, chosen: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> None:
        self._chosen, self._refuse = chosen, refuse
        self._items = PAPERS[chosen.paper].select_items([chosen.item])
        self._results = chosen.out / "results.jsonl"
        self._lines = _read([self._results])
        self._wanted = ReproductionOptions(
            seeds=max(chosen.seeds) + 1, rounds=chosen.rounds, sets=tuple(chosen.sets), data_directory=chosen.data
        )

    def run(self) -> None:
        """All runs; those whose settings are chosen by others' results when these are there."""
        if self._chosen.collect:
            self._collect()
            return
        until, tried = time.monotonic() + self._chosen.wait, set[tuple[str, ...]]()
        while True:
            missing = [run for run in self._missing() if run.key not in tried]
            tried |= {run.key for run in missing}
            if missing:
                self._compute(missing)
            elif time.monotonic() > until or self._is_complete():
                return
            else:
                time.sleep(POLL_S)

    def _collect(self) -> None:
        for run in self._missing():
            try:
                self._keep(run)
            except RunError as error:  # not begun, or stopped while its folder was made
                print(f"left out: {error}")

    def _missing(self) -> list[PaperRun]:
        known = self._known()
        return [run for run in self._runs() if not _is_whole(known.get(run.key), run)]

    def _runs(self) -> list[PaperRun]:
        """Runs of the rows and seeds, as far as their settings are known. A row has all runs that it was tuned with."""
        runs = self._all_runs()
        asked, tuning = self._asked(runs), _tuning_seeds(runs)
        return [
            run
            for run in runs
            if run.experiment.seed in self._chosen.seeds
            and not asked.isdisjoint({run.algorithm, _row(run)})
            and (_is_candidate(run) or run.experiment.seed not in tuning)
        ]

    def _all_runs(self) -> list[PaperRun]:
        wanted = replace(self._wanted, known=self._known())
        return [run for item in self._items for run in item.runs(wanted)]

    def _asked(self, runs: Sequence[PaperRun]) -> set[str]:
        rows = {_row(run) for run in runs}
        asked = set(self._chosen.algorithms or rows)
        if unknown := asked - rows - {run.algorithm for run in runs}:
            self._refuse(f"no such row: {', '.join(sorted(unknown))}; rows are {', '.join(sorted(rows))}")
        return asked

    def _known(self) -> dict[tuple[str, ...], ResultLine]:
        return {**_read(self._chosen.tuned), **self._lines}

    def _is_complete(self) -> bool:
        """Whether every row has runs with the seeds that are reported; one that is still to be tuned has candidates
        alone.
        """
        runs = self._all_runs()
        ready = {_row(run) for run in runs if not _is_candidate(run)}
        rows = {_row(run) for run in runs} & self._asked(runs)
        return {*self._chosen.seeds} <= _tuning_seeds(runs) or rows <= ready

    def _compute(self, runs: Sequence[PaperRun]) -> None:
        specs = [
            RunSpec(
                experiment=_with_features(run.experiment, self._chosen.features),
                out=run.folder(self._chosen.out),
                resume=True,
                data_directory=self._chosen.data,
            )
            for run in runs
        ]
        finished = partial(_call_with, self._keep, runs)
        run_many(specs, self._chosen.workers, quiet=True, skip_incompatible=True, on_finished=finished)

    def _keep(self, run: PaperRun) -> None:
        line = run.line(self._chosen.out, self._wanted)
        self._lines[line.key] = line
        write_lines(self._results, self._lines)


def _is_whole(line: ResultLine | None, run: PaperRun) -> bool:
    return isinstance(line, RunResultLine) and line.rounds >= run.experiment.rounds


def _is_candidate(run: PaperRun) -> bool:
    return "@" in run.algorithm


def _tuning_seeds(runs: Iterable[PaperRun]) -> set[int]:
    return {run.experiment.seed for run in runs if _is_candidate(run)}


def _row(run: PaperRun) -> str:
    """Its row or curve, whatever settings are tried."""
    return run.algorithm.partition("@")[0]


def _read(files: Iterable[Path]) -> dict[tuple[str, ...], ResultLine]:
    return dict(lines_by_key(line for file in files if file.exists() for line in read_lines(file)))


def _with_features(experiment: Experiment, folder: Path | None) -> Experiment:
    if folder is None or experiment.encode is None:
        return experiment
    encode = experiment.encode.model_copy(update={"cache": folder.absolute()})
    return experiment.model_copy(update={"encode": encode})


def _call_with(keep: Callable[[PaperRun], None], runs: Sequence[PaperRun], index: int) -> None:
    keep(runs[index])


if __name__ == "__main__":
    main()
