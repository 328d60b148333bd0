"""Some of the runs of a paper's table or figure, by algorithm and seed; `winnow reproduce` makes all of them.

    python -m bench.paper_runs fedprof table3 --algorithms fedavg fedprof-full --seeds 0 1 2 --rounds 40 --out DIR

Runs that were stopped go on when the command is repeated. What is finished stands in DIR/results.jsonl, which
`winnow reproduce --from` takes.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from winnow.cli.parallel_runs import run_many
from winnow.experiment.run_pool import RunSpec
from winnow.papers import PAPERS, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLine, lines_by_key, read_lines, write_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=sorted(PAPERS))
    parser.add_argument("item", help="a table or figure")
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="rows or curves; default: all")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=[0])
    parser.add_argument("--rounds", type=int, metavar="N")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY.PATH=VALUE")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--workers", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--collect", action="store_true", help="run nothing; take what stopped runs came to")
    chosen = parser.parse_args()
    wanted = ReproductionOptions(
        seeds=max(chosen.seeds) + 1, rounds=chosen.rounds, sets=tuple(chosen.sets), data_directory=chosen.data
    )
    items = PAPERS[chosen.paper].select_items([chosen.item])
    runs = {run.key: run for item in items for run in item.runs(wanted)}
    names = sorted({run.algorithm for run in runs.values()})
    if unknown := set(chosen.algorithms or ()) - {*names}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; rows are {', '.join(names)}")
    rows = chosen.algorithms or names
    some = [run for run in runs.values() if run.experiment.seed in chosen.seeds and run.algorithm in rows]
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "results.jsonl"
    lines = lines_by_key(read_lines(results)) if results.exists() else {}
    missing = [run for run in some if run.key not in lines]
    kept = partial(_keep, lines, results, chosen.out, wanted)
    if chosen.collect:
        for run in missing:
            kept(run)
    else:
        _run(missing, kept, chosen)


def _run(runs: Sequence[PaperRun], kept: Callable[[PaperRun], None], chosen: argparse.Namespace) -> None:
    specs = [
        RunSpec(experiment=run.experiment, out=run.folder(chosen.out), resume=True, data_directory=chosen.data)
        for run in runs
    ]
    run_many(specs, chosen.workers, quiet=True, skip_incompatible=True, on_finished=lambda index: kept(runs[index]))


def _keep(
    lines: dict[tuple[str, ...], ResultLine], results: Path, out: Path, wanted: ReproductionOptions, run: PaperRun
) -> None:
    line = run.line(out, wanted)
    lines[line.key] = line
    write_lines(results, lines)


if __name__ == "__main__":
    main()
