"""Winnow against other frameworks on the same work, one after another in one run.

    python -m bench.rivals --data DIR --scripts DIR --venvs DIR [--only NAME] [--work NAME] [--rounds N]

SCRIPTS holds one script a rival, VENVS an environment for each (`base`, `pfl`, `flower`, `nvflare`, `jax`). A script
is called as `python SCRIPT DATA gasturbine|mnist … --rounds N`, and appends a line of JSON with its `kind` and `metric`
to the file $PEER_LOG after every round. Rivals whose environment is missing, or that need more memory than is free, are
named and left out.

The work: gasturbine, 10 of 50 clients x 2 epochs, batch 8, MLP 9-64-32-2; mnist, 25 of 500 clients x 5 epochs, batch
32, LeNet-5; SGD with momentum 0.9, the model evaluated every round on 11,000 rows or 10,000 images. Winnow is started
as `winnow run`, with a run folder and a report. Memory is resident memory summed over the process tree, sampled.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.rivals.contenders import CONTENDERS, PRESETS, ROUNDS, STARTS, Contender, Places
from bench.rivals.measure import FailedError, Figures, measure
from bench.table import machine

HEADER = ("", "s a round", "first round after, s", "peak MB", "score", "rounds")
START_ROUNDS = 5


def main() -> None:
    options = _options()
    places = Places(data=options.data.absolute(), scripts=options.scripts.absolute(), venvs=options.venvs.absolute())
    print(machine())
    for work in options.work or ROUNDS:
        _table(f"{work}: the same work", CONTENDERS, work, options.rounds or ROUNDS[work], places, options.only)
    for work in options.work or ROUNDS:
        _table(f"winnow run {PRESETS[work]}: the preset as it is", STARTS, work, START_ROUNDS, places, options.only)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--data", "--scripts", "--venvs"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--only", action="append", metavar="NAME", help="a part of a row's name; may be repeated")
    parser.add_argument("--work", action="append", choices=list(ROUNDS), help="may be repeated; else both")
    parser.add_argument("--rounds", type=int, metavar="N", help="else 50 and 10; scores are then not the usual ones")
    return parser.parse_args()


def _table(
    title: str, contenders: Sequence[Contender], work: str, rounds: int, places: Places, only: Sequence[str] | None
) -> None:
    chosen = [each for each in contenders if only is None or any(part in each.name for part in only)]
    if not chosen:
        return
    print(f"\n{title}\n")
    _line(HEADER)
    _line(["---", *["---:"] * (len(HEADER) - 1)])
    for contender in chosen:
        _line([contender.name, *_cells(contender, work, rounds, places)])


def _cells(contender: Contender, work: str, rounds: int, places: Places) -> Sequence[str]:
    missing = contender.missing(work, places)
    if missing:
        return [missing]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        try:
            return _shown(measure(contender.start(work, rounds, places, folder), folder / "words"))
        except FailedError as error:
            return [f"failed: {error}"]


def _shown(figures: Figures) -> Sequence[str]:
    steady = "" if figures.steady is None else f"{figures.steady:.4f}"
    score = "" if figures.score is None else f"{figures.score:.4f}"
    return [steady, f"{figures.first:.2f}", f"{figures.peak_bytes / 1e6:.0f}", score, str(figures.rounds)]


def _line(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
