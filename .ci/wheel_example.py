"""A new user's first steps with the installed wheel; each must succeed and write nothing unexpected to standard error.

Usage: wheel_example.py WINNOW, where WINNOW is the command of the environment to try.
"""

import csv
import random
import re
import subprocess
import sys
from pathlib import Path

COST = re.compile(r"\d+ owners, \d+ exchanges, [^\n]*\n")
"""The line in which `winnow query` says what an answer has cost."""
FEDERATION = """
[tables.patients]
file = "patients.csv"
owner = "hospital"

[tables.patients.columns]
age       = { level = "protected", type = "integer", bounds = [0, 110] }
glucose   = { level = "protected", type = "integer", bounds = [0, 300] }
diagnosis = { level = "protected", values = ["well", "ill"] }
"""

SCRIPT = """
import winnow
print(winnow.query("SELECT diagnosis, COUNT(*) AS n FROM patients GROUP BY diagnosis"))
"""


def main(winnow: str) -> None:
    write_patients(Path("patients.csv"))
    Path("federation.toml").write_text(FEDERATION)
    Path("ask.py").write_text(SCRIPT)
    python = str(Path(winnow).with_name("python"))
    question = "SELECT diagnosis, COUNT(*) AS n, AVG(glucose) AS glucose FROM patients GROUP BY diagnosis"
    commands = [
        [winnow, "compare", "demo", "--algorithms", "fedprof,fedavg-rp", "--seeds", "1", "--quiet"],
        [winnow, "run", "demo", "--rounds", "5", "--out", "runs/first", "--quiet"],
        [winnow, "query", question],
        [winnow, "fit", "logistic", "diagnosis ~ age + glucose"],
        [winnow, "report", "runs/first", "--out", "again.html"],
        [python, "ask.py"],
    ]
    failed = [" ".join(command) for command in commands if not succeeds(command)]
    if failed:
        sys.exit("failed, or wrote to standard error:\n" + "\n".join(failed))


def succeeds(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    print("$", *command, done.stdout, done.stderr, sep="\n", flush=True)
    return done.returncode == 0 and not COST.sub("", done.stderr)


def write_patients(path: Path) -> None:
    chance = random.Random(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["age", "glucose", "hospital", "diagnosis"])
        for _ in range(1200):
            age = chance.randint(20, 90)
            ill = chance.random() < age / 110
            glucose = round(chance.gauss(115 if ill else 95, 15))
            table.writerow([age, glucose, chance.choice("abc"), "ill" if ill else "well"])


if __name__ == "__main__":
    main(sys.argv[1])
