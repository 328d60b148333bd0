"""Some rows and seeds of a table that is measured rather than made of run folders; `winnow reproduce` measures all.

    python -m bench.measured_rows ensemble adult-dp-3.78 --rows age-mean age-over-arch --seeds 0 1 --out DIR

What is finished stands in DIR/results.jsonl, which `winnow reproduce --from` takes; the same command goes on after a
stop. Rows of an ensemble that share leaves are measured together, so they belong into one command; they are tuned
first, as far as `--from` does not have that.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from winnow.papers import PAPERS, ReproductionOptions
from winnow.papers.ensemble.rival_table import RivalTable
from winnow.papers.phones.transfer_table import TransferTable
from winnow.papers.result_json_lines import lines_by_key, read_lines, write_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=("ensemble", "phones"))
    parser.add_argument("item", help="a table")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", default=[0])
    parser.add_argument("--rounds", type=int, metavar="N")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--from", dest="imported", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    chosen = parser.parse_args()
    [table] = PAPERS[chosen.paper].select_items([chosen.item])
    assert isinstance(table, RivalTable | TransferTable)
    names = [row.name for row in table.rows]
    if unknown := {*(chosen.rows or ())} - {*names}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; rows are {', '.join(names)}")
    some = replace(table, rows=tuple(row for row in table.rows if row.name in (chosen.rows or names)))
    wanted = ReproductionOptions(rounds=chosen.rounds, data_directory=chosen.data)
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "results.jsonl"
    lines = dict(lines_by_key(read_lines(results))) if results.exists() else {}
    known = lines_by_key(line for file in chosen.imported for line in read_lines(file)) | lines
    for line in some.measure_seeds(chosen.seeds, wanted, known):
        lines[line.key] = line
        write_lines(results, lines)


if __name__ == "__main__":
    main()
