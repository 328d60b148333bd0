"""Reports for the site's gallery: make_gallery.py FOLDER runs the commands of docs/gallery.md and keeps their pages.

Papers that have records in docs/results get their pages with all figures, too.
"""

import csv
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sklearn.datasets import load_diabetes

from winnow.papers import PAPERS

RECORDS = Path(__file__).parents[1] / "results"
WINNOW = [sys.executable, "-m", "winnow.cli"]
FEDERATION = """
[tables.people]
file = "people.csv"
owner = "clinic"

[tables.people.columns]
age = { level = "protected", bounds = [18, 80] }
bmi = { level = "protected", bounds = [15, 45] }
bp = { level = "protected", bounds = [60, 135] }
progress = { level = "protected", bounds = [0, 350] }
sex = { level = "protected", values = ["f", "m"] }
"""


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        here = Path(work)
        _write_people(here)
        _winnow(
            here, "compare", "demo", "--algorithms", "fedprof,fedavg-rp", "--seeds", "2", "--rounds", "40", "--out", "c"
        )
        _winnow(
            here, "stats", "people", "--by", "sex", "--histograms", "20", "--correlation", "--out", "statistics.html"
        )
        first = next(path for path in sorted((here / "c").iterdir()) if (path / "run.json").exists())
        _winnow(here, "report", str(first), "--out", "run.html")
        shutil.copy(here / "c" / "report.html", folder / "comparison.html")
        for name in ("run.html", "statistics.html"):
            shutil.copy(here / name, folder / name)
        for records in filter(Path.exists, (RECORDS / f"{paper}.jsonl" for paper in PAPERS)):
            _winnow(here, "reproduce", records.stem, "--from", str(records), "--no-run", "--out", records.stem)
            shutil.copy(here / records.stem / "index.html", folder / records.name.replace(".jsonl", ".html"))


def _write_people(folder: Path) -> None:
    """scikit-learn's diabetes study, divided among three clinics."""
    data = load_diabetes(scaled=False)
    with (folder / "people.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["clinic", "age", "sex", "bmi", "bp", "progress"])
        for place, (row, progress) in enumerate(zip(data.data, data.target, strict=True)):
            sex = "m" if row[1] == 2 else "f"
            writer.writerow([["north", "south", "east"][place % 3], row[0], sex, row[2], row[3], progress])
    (folder / "federation.toml").write_text(FEDERATION, encoding="utf-8")


def _winnow(folder: Path, *arguments: str) -> None:
    quiet = {**os.environ, "COLUMNS": "100"}
    command = [*WINNOW, *arguments]
    done = subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"winnow {' '.join(arguments)}: {done.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
