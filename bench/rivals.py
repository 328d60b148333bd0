"""Winnow against other frameworks on the same work, one after another in one run.

    python -m bench.rivals --data DIR --scripts DIR --venvs DIR

SCRIPTS holds one script a rival, VENVS an environment for each (`pfl`, `base`). A script is called as
`python SCRIPT DATA gasturbine|mnist`, and appends a line of JSON with a time `t` to the file $PEER_LOG when it begins
and after every round. Rivals whose environment is missing are left out.

The work: gasturbine, 10 of 50 clients x 2 epochs, batch 8, MLP 9-64-32-2; mnist, 25 of 500 clients x 5 epochs, batch
32, LeNet-5; SGD with momentum 0.9, the model evaluated every round on 11,000 rows or 10,000 images.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.table import Row, machine, show

ROUNDS = {"gasturbine": 50, "mnist": 10}
WARM_UP = 2
RIVALS = {
    "pfl, 2 processes": ("pfl", ["torchrun", "--nproc_per_node", "2"], "pfl_peer.py", []),
    "plain PyTorch loop, 2 processes": ("base", ["python"], "plain_peer.py", ["--workers", "2"]),
    "stacked by hand": ("base", ["python"], "cohort_peer.py", ["--how", "bmm"]),
}
WINNOW = {
    "gasturbine": [
        "data.corruptions=[]",
        "data.test=0",
        "model.hidden=[64, 32]",
        "local.name=sgd",
        "local.learning_rate=0.005",
        "local.momentum=0.9",
    ],
    "mnist": ["data.corruptions=[]", "local.learning_rate=0.01"],
}
PRESETS = {"gasturbine": "gas-turbine", "mnist": "mnist"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--data", "--scripts", "--venvs"):
        parser.add_argument(option, type=Path, required=True)
    options = parser.parse_args()
    print(machine())
    for work in ROUNDS:
        times = {"Winnow": winnow_seconds(work, options.data)}
        for name, (venv, head, script, extra) in RIVALS.items():
            interpreter = options.venvs / venv / "bin" / head[0]
            if interpreter.exists() and not (work == "mnist" and script == "cohort_peer.py"):
                command = [str(interpreter), *head[1:], str(options.scripts / script), str(options.data), work, *extra]
                times[name] = rival_seconds(command)
        base = times.get("pfl, 2 processes", times["Winnow"])
        rows = [Row(name=name, value=1e3 * seconds, unit="ms", baseline=base * 1e3) for name, seconds in times.items()]
        show(f"{work}: a round, its evaluation included", rows)


def winnow_seconds(work: str, data: Path) -> float:
    """A fresh process, as for the rivals."""
    code = f"from bench.rivals import run_winnow; run_winnow({work!r}, {str(data)!r})"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def run_winnow(work: str, data: str) -> None:
    from winnow.experiment.resolve import resolve
    from winnow.experiment.run import Inputs, execute

    settings = resolve(PRESETS[work], sets=WINNOW[work], algorithm="fedavg-rp", rounds=ROUNDS[work])
    moments: list[float] = []
    execute(
        settings,
        inputs=Inputs(data_directory=Path(data)),
        on_event=lambda event: moments.append(time.perf_counter()) if event.kind == "round" else None,
    )
    print(median_gap(moments))


def rival_seconds(command: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environment = {**os.environ, "PEER_LOG": str(log), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        subprocess.run(command, check=False, capture_output=True, env=environment)  # some abort when all is done
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    return median_gap([line["t"] for line in lines if line["kind"] == "round"])


def median_gap(moments: list[float]) -> float:
    gaps = [after - before for before, after in zip(moments[WARM_UP:], moments[WARM_UP + 1 :], strict=False)]
    return statistics.median(gaps)


if __name__ == "__main__":
    main()
