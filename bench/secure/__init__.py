"""Secure aggregation: time of a client and of the server, bytes and memory, with 0, 10 and 30 % dropouts.

Baseline: the same vectors added up in the clear, as float32; for the client's time, encoding without masks. Weights
have 8 bits. 100 clients share masks all with all, more in a ring. Clients drop out when all others have masked their
vectors, which is when it costs most. Times are of one processor core.

With SECURE_VENVS, a folder with the environment `flower`, Flower's SecAgg+ does the same in the same run, as a ratio to
Winnow. That takes most of an hour.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from bench.secure import flower, memory
from bench.secure.sessions import Costs, World, pairwise, plain, with_keeper
from bench.table import Row
from winnow.privacy.secagg.masking_graph import safe_degree

Case = tuple[int, int, Literal["complete", "ring"]]
CASES: tuple[Case, ...] = ((100, 1_000_000, "complete"), (1_000, 100_000, "ring"))
FLOWERS: tuple[Case, ...] = ((100, 1_000_000, "complete"), (500, 100_000, "ring"))
"""Going by its cost for 100 clients, 1,000 × 100,000 takes Flower about 25 minutes; fewer weights would hardly help."""
DROPOUTS = (0.0, 0.1, 0.3)


def measure() -> list[Row]:
    python = flower.interpreter()
    if python is None:
        print("\n(for Flower's SecAgg+ in the same run, set SECURE_VENVS to a folder with an environment `flower`)")
        return [row for case in CASES for row in _rows(World(*case))]
    rows = []
    for case in dict.fromkeys((*CASES, *FLOWERS)):
        rows += _rows(World(*case), python if case in FLOWERS else None)
    return rows


def _rows(world: World, python: Path | None = None) -> list[Row]:
    encoding, adding = plain(world)
    clear = Costs(client=encoding, server=adding, up=4 * world.parameters, down=4 * world.parameters)
    rows = _shown(f"{world.clients:,} × {world.parameters:,}, in the clear", clear, clear)
    masked = _sessions(world, pairwise)
    for share, costs in masked.items():
        rows += _shown(f"  {_shape(world)}, {share:.0%} gone", costs, clear)
    for share, costs in _sessions(world, with_keeper).items():
        rows += _shown(f"  keeper, {share:.0%} gone", costs, clear)
    if python:
        for share, costs in flower.sessions(python, world, DROPOUTS).items():
            rows += _shown(f"  Flower, {share:.0%} gone", costs, masked[share], "Winnow")
    return [*rows, *_memory(world)]


def _sessions(world: World, way: Callable[[World, float], Costs]) -> dict[float, Costs]:
    return {share: way(world, share) for share in DROPOUTS}


def _shown(name: str, costs: Costs, baseline: Costs, whose: str = "") -> list[Row]:
    seconds = {"client": (costs.client, baseline.client), "server": (costs.server, baseline.server)}
    sizes = {"up": (costs.up, baseline.up), "down": (costs.down, baseline.down)}
    return [
        *(_row(f"{name}: {what}", *pair, 1e3, "ms", whose) for what, pair in seconds.items()),
        *(_row(f"{name}: {what}", *pair, 1e-3, "kB", whose) for what, pair in sizes.items()),
    ]


def _row(name: str, value: float, baseline: float, factor: float, unit: str, whose: str) -> Row:
    return Row(name=name, value=factor * value, unit=unit, baseline=factor * baseline, goal=whose)


def _shape(world: World) -> str:
    return "complete" if world.graph == "complete" else f"ring of {safe_degree(world.clients)}"


def _memory(world: World) -> list[Row]:
    found, vector = memory.of_server(world), sum(words.nbytes for words in world.group.zeros())
    return [
        _row("  server's memory, in vectors", found.vectors, vector, 1e-6, "MB", "few"),
        _row("  and its messages", found.messages, vector, 1e-6, "MB", ""),
    ]
