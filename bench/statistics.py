"""Statistics of Adult with five owners, from command to page, over NVFlare's of the same files (lower is better).

All columns, histograms of 20 bins, correlation, by sex; and with five quantiles. Rows are read from $WINNOW_DATA.
NVFlare runs where $STATISTICS_VENVS names a folder with an environment `nvflare` (nvflare, pandas, fastdigest), in its
simulator, without secure sums and for columns of numbers alone. Where there is none, Winnow without any protection is
the baseline.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.adult_federation import OWNERS, TABLE, adult_rows, write_federation
from bench.table import Row

QUANTILES = ("0.05", "0.25", "0.5", "0.75", "0.95")
GOALS = {"without quantiles": "at most 5 s, and 0.2 × NVFlare", "with five quantiles": "at most 20 s"}
PLAIN = """
import sys, time
from winnow.analytics.program import run_plain
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.simulate import simulated_terms
from winnow.analytics.tables.federation_file import load_federation
table = load_federation(sys.argv[1]).table("people")
levels = tuple(float(level) for level in sys.argv[2:])
question = read_question(dict(kind="statistics", table="people", by=("sex",), histograms=20, correlation=True,
                              quantiles=levels))
rows = {name: read() for name, read in table.owners.items()}
terms = merge_terms(question, {name: simulated_terms(question, table, own) for name, own in rows.items()})
run_plain(lambda: question.program(terms), list(rows.values()))
"""


def measure() -> list[Row]:
    rows = adult_rows()
    if rows is None:
        print("  Adult is missing: set WINNOW_DATA to a folder with tabular/adult.data.gz")
        return []
    with tempfile.TemporaryDirectory(prefix="winnow-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        federation = write_federation(rows, folder)
        return [
            _row("without quantiles", federation, ()),
            _row("with five quantiles", federation, QUANTILES),
        ]


def _row(name: str, federation: Path, levels: Sequence[str]) -> Row:
    venvs = os.environ.get("STATISTICS_VENVS")
    rival = _nvflare(Path(venvs), federation, levels) if venvs else _plain(federation, levels)
    asked = ["--in", federation, "--by", "sex", "--histograms", "20", "--correlation"]
    asked += ["--quantiles", ",".join(levels)] if levels else []
    page = federation.parent / "people.html"
    seconds = _timed([sys.executable, "-m", "winnow.cli", "stats", TABLE, *asked, "--out", page])
    print(f"  {name}: winnow {seconds:.2f} s, {'NVFlare' if venvs else 'unprotected'} {rival:.2f} s")
    return Row(name=name, value=seconds, unit="s", baseline=rival, goal=GOALS[name])


def _plain(federation: Path, levels: Sequence[str]) -> float:
    return _timed([sys.executable, "-c", PLAIN, federation, *levels])


def _nvflare(venvs: Path, federation: Path, levels: Sequence[str]) -> float:
    script = Path(__file__).parent / "rivals" / "nvflare_statistics.py"
    with tempfile.TemporaryDirectory(dir=federation.parent, ignore_cleanup_errors=True) as out:
        return _timed([venvs / "nvflare" / "bin" / "python", script, federation.parent, OWNERS, out, *levels])


def _timed(command: Sequence[object]) -> float:
    begun = time.perf_counter()
    subprocess.run([str(each) for each in command], check=True, capture_output=True, timeout=900)
    return time.perf_counter() - begun
