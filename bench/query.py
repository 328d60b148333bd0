"""SQL over three owners with 100,000 points each: the 16 nearest, a range count, and 1,000 comparisons.

Owners are simulated in this process, then deployed as processes. The answers must be those of DuckDB over all rows,
whose time is the baseline, unless $QUERY_VENVS names a folder with an environment `spu` (spu): then SPU's time is, for
the comparisons and for the nearest points, which it finds among the 16 nearest of each owner (three parties, ABY3, in
its own simulator).
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as arrow
from pyarrow import parquet

from bench.deploy.world import World, world
from bench.table import Row
from winnow.analytics.question import QueryTerms, read_question
from winnow.analytics.sealed_answer import opened_answer, with_reader
from winnow.analytics.simulate import ask_owners
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import AnyEvent, RoundFinished
from winnow.privacy.shares.party import SecureStep, StepParty

OWNERS, POINTS, NEAREST, COMPARISONS, REPEAT = 3, 100_000, 16, 1_000, 3
NEAR = f"SELECT x, y FROM points ORDER BY DISTANCE(x, y, 0.3, 0.4) LIMIT {NEAREST}"
PLAIN_NEAR = f"SELECT x, y FROM points ORDER BY sqrt((x - 0.3) ** 2 + (y - 0.4) ** 2) LIMIT {NEAREST}"
RANGE = "SELECT COUNT(*) AS n FROM points WHERE DWITHIN(x, y, 0.5, 0.5, 0.1)"
PLAIN_RANGE = "SELECT COUNT(*) AS n FROM points WHERE sqrt((x - 0.5) ** 2 + (y - 0.5) ** 2) <= 0.1"
COLUMNS = {name: {"level": "protected", "type": "number", "bounds": [0.0, 1.0]} for name in "xy"}
SITE = """
[tables.points]
file = "points.parquet"
[tables.points.columns]
x = { level = "protected", type = "number", bounds = [0, 1] }
y = { level = "protected", type = "number", bounds = [0, 1] }
"""
POLICY = f"""
[[queries]]
people = ["me"]
tables = ["points"]
allow = ["aggregate", "nearest"]
rows = {NEAREST}
"""


def measure() -> list[Row]:
    rng = np.random.default_rng(0)
    rows = [arrow.table({"x": rng.random(POINTS), "y": rng.random(POINTS)}) for _ in range(OWNERS)]
    pooled = arrow.concat_tables(rows)
    spu = _spu(rows)
    near, count = _duckdb(PLAIN_NEAR, pooled), _duckdb(PLAIN_RANGE, pooled)
    found = [_compared(spu.get("comparisons")), *_simulated(rows, near, count, spu.get("nearest"))]
    with (
        tempfile.TemporaryDirectory(prefix="winnow-bench-", ignore_cleanup_errors=True) as scratch,
        world(Path(scratch), OWNERS, lambda place, kit: _configure(kit, rows[place])) as here,
    ):
        return [*found, *_deployed(here, near, count)]


def _duckdb(sql: str, rows: arrow.Table) -> tuple[float, list[tuple[Any, ...]]]:
    """Seconds, and the answer over all rows in one place."""
    with duckdb.connect() as opened:
        opened.register("points", rows)
        return _timed(lambda: opened.execute(sql).fetchall())


def _simulated(
    rows: list[arrow.Table], near: tuple[float, Any], count: tuple[float, Any], spu: float | None
) -> list[Row]:
    declaration = TableDeclaration.model_validate({"columns": COLUMNS})
    tables = {f"owner {place}": OwnerTable(declaration, each) for place, each in enumerate(rows)}
    nearest, answer, sent = _asked(NEAR, tables)
    _check([tuple(row.values()) for row in answer["rows"]], near[1])
    counting, counted, _ = _asked(RANGE, tables)
    _check([tuple(row.values()) for row in counted["rows"]], count[1])
    baseline = near[0] if spu is None else spu
    whose = "DuckDB, pooled" if spu is None else "SPU"
    return [
        Row(name=f"nearest {NEAREST}, simulated", value=nearest, unit="s", baseline=baseline, goal=f"≤ 2 s; {whose}"),
        Row(name="its messages", value=sent / 1e6, unit="MB", baseline=11.2, goal="≤ 3 MB; SMCQL-GIS, two owners"),
        Row(name="range count, simulated", value=counting, unit="s", baseline=count[0], goal="≤ 0.2 s; DuckDB, pooled"),
    ]


def _asked(sql: str, tables: Mapping[str, OwnerTable]) -> tuple[float, Any, float]:
    """Seconds, the answer, and bytes that all parties sent."""
    sent = list[float]()

    def add(event: AnyEvent) -> None:
        if isinstance(event, RoundFinished):
            sent.append(event.cost.sent_bytes)

    def ask() -> Any:
        sent.clear()
        question, reader = with_reader(read_question({"kind": "query", "sql": sql}))
        terms = {
            name: QueryTerms(declaration=each.declaration, allow=("aggregate", "nearest"), rows=NEAREST)
            for name, each in tables.items()
        }
        return opened_answer(ask_owners(question, tables, terms, on_event=add), reader)

    seconds, answer = _timed(ask)
    return seconds, answer, sum(sent)


def _deployed(here: World, near: tuple[float, Any], count: tuple[float, Any]) -> list[Row]:
    """Medians after a first statement, which ends with a worker that is kept ready for the next."""
    connection = here.connection
    first, counted = _timed(lambda: connection.query(RANGE))
    _check([tuple(row.values()) for row in counted.rows], count[1])
    nearest, answer = _timed(lambda: connection.query(NEAR))
    _check([tuple(row.values()) for row in answer.rows], near[1])
    return [
        Row(
            name="first answer (range count), deployed, warm",
            value=first,
            unit="s",
            baseline=count[0],
            goal="≤ 5 s; DuckDB, pooled",
        ),
        Row(
            name=f"nearest {NEAREST}, deployed",
            value=nearest - first,
            unit="s",
            baseline=near[0],
            goal="≤ 4 s beyond a range count's; DuckDB, pooled",
        ),
    ]


def _configure(kit: Path, rows: arrow.Table) -> None:
    parquet.write_table(rows, kit / "points.parquet")
    (kit / "site.toml").write_text(SITE)
    (kit / "policy.toml").write_text(POLICY)


def _compared(spu: float | None) -> Row:
    """Sums of three owners with thresholds; without SPU over a plain sum in shares."""
    thresholds = np.full(COMPARISONS, 10, np.int64)
    compare = SecureStep(digest=b"c", owners=tuple(range(OWNERS)), length=COMPARISONS, bits=32, thresholds=thresholds)
    add = SecureStep(digest=b"s", owners=tuple(range(OWNERS)), length=COMPARISONS, bits=32)
    seconds, summed = (_timed(lambda step=step: _exchange(step))[0] for step in (compare, add))
    goal = "SPU" if spu is not None else "a sum of them"
    return Row(name=f"{COMPARISONS:,} comparisons, 32 bit", value=seconds, unit="s", baseline=spu or summed, goal=goal)


def _exchange(step: SecureStep) -> None:
    rng = np.random.default_rng(1)
    parties = {owner: StepParty(step, owner, rng.integers(0, 9, step.length)) for owner in step.owners}
    messages = {owner: party.first_messages() for owner, party in parties.items()}
    while any(messages.values()):
        arrived = {me: {sender: written[me] for sender, written in messages.items() if me in written} for me in parties}
        messages = {me: party.receive(arrived[me]) if arrived[me] else {} for me, party in parties.items()}
    assert all(party.opened is not None for party in parties.values())


def _spu(rows: list[arrow.Table]) -> dict[str, float]:
    """SPU's seconds for the comparisons and for the nearest points; nothing where it is not installed."""
    venvs = os.environ.get("QUERY_VENVS")
    if venvs is None:
        return {}
    near = [np.sort(np.hypot(np.asarray(each["x"]) - 0.3, np.asarray(each["y"]) - 0.4))[:NEAREST] for each in rows]
    given = json.dumps({"comparisons": COMPARISONS, "nearest": NEAREST, "distances": [each.tolist() for each in near]})
    script = Path(__file__).parent / "rivals" / "spu_query.py"
    python = Path(venvs) / "spu" / "bin" / "python"
    done = subprocess.run([str(python), str(script)], input=given, capture_output=True, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _check(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    if found != expected:
        raise AssertionError(f"the answer differs from DuckDB's: {found[:2]} … instead of {expected[:2]} …")


def _once(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    done = work()
    return time.perf_counter() - begun, done


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """The median of some runs after a first one, and the last result."""
    work()
    runs = [_once(work) for _ in range(REPEAT)]
    return statistics.median(seconds for seconds, _ in runs), runs[-1][1]
