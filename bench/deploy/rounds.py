"""Seconds a round: an array to five sites, which add something to it, and their mean, with no training work.

Baseline: the time that the same bytes take by plain gRPC with TLS, five times down and five times up, in this run. With
DEPLOY_VENVS, a folder with the environments `flower` and `nvflare`, their own deployments do the same in the same run.
"""

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import wire
from bench.deploy import rivals
from bench.deploy.exchange import write_program
from bench.deploy.world import world
from bench.table import Row

SITES = 5
SIZES = {"0.4 MB": (100_000, 20), "64 MB": (1 << 24, 6)}
"""Floats of the array, and rounds."""
WARM_UP = 2
PATIENCE = 600


def measure() -> list[Row]:
    _, down, up = wire.plainly()
    venvs = os.environ.get("DEPLOY_VENVS")
    contenders: dict[str, Callable[[int, int], Sequence[float]]] = {"Winnow": _winnow}
    if venvs:
        contenders |= rivals.contenders(Path(venvs), SITES)
    rows = []
    for size, (floats, rounds) in SIZES.items():
        megabytes = 4 * floats / 2**20
        plain = SITES * megabytes * (1 / down + 1 / up)
        for name, contender in contenders.items():
            try:
                seconds = steady(contender(floats, rounds))
            except rivals.FailedError as error:
                print(f"  {name}, {size}: {error}")
                continue
            rows.append(Row(name=f"{name}, {size}: a round", value=seconds, unit="s", baseline=plain))
    return rows


def steady(moments: Sequence[float]) -> float:
    """The mean time between ends of rounds, after the first ones."""
    later = moments[WARM_UP - 1 :]
    return (later[-1] - later[0]) / (len(later) - 1)


def _winnow(floats: int, rounds: int) -> Sequence[float]:
    with tempfile.TemporaryDirectory(prefix="winnow-bench-") as name, world(Path(name), SITES) as here:
        job = here.connection.submit(
            write_program(here.folder, arrays=1, length=floats, rounds=rounds), min_sites=SITES
        )
        job.wait(PATIENCE)
        events = [json.loads(line.text) for line in job.lines(follow=False) if line.kind == "event"]
        return [event["at"] for event in events if event["kind"] == "round_finished"]
