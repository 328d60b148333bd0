"""Flower's SecAgg+ on the same work, in an environment of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.secure.sessions import Costs, World

SCRIPT = Path(__file__).with_name("flower_sessions.py")
LIMIT = 1200
"""Processor seconds for all parties of a session together."""


def interpreter() -> Path | None:
    """Its Python, if SECURE_VENVS names a folder with the environment `flower`."""
    folder = os.environ.get("SECURE_VENVS")
    if not folder:
        return None
    python = Path(folder) / "flower" / "bin" / "python"
    if not python.exists():
        sys.exit(f"SECURE_VENVS: there is no {python}")
    return python


def sessions(python: Path, world: World, dropouts: Sequence[float]) -> Mapping[float, Costs]:
    """By share of dropouts, those that ended within the limit; as many holders of secrets as Winnow has, and so on."""
    graph = world.terms().masking_graph(range(world.clients))
    holders = len(graph.holders(0))
    options = {
        "clients": world.clients,
        "parameters": world.parameters,
        "holders": holders,
        "needed": world.terms().shares_needed(graph, holders),
        "bits": world.bits,
        "limit": LIMIT,
    }
    asked = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [python, SCRIPT, *asked, "--dropouts", *map(str, dropouts)],
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=False,
    )
    lines = (json.loads(line) for line in done.stdout.splitlines())
    found = {line.pop("dropouts"): Costs(**line) for line in lines}
    for share in (each for each in dropouts if each not in found):
        print(f"  Flower, {world.clients:,} × {world.parameters:,}, {share:.0%} gone: no sum within {LIMIT} s")
    return found
