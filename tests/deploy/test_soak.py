"""A job of many rounds: no process of a federation grows once it has settled.

WINNOW_SOAK_ROUNDS says how many rounds; 5,000 take a few times as long as the default.
"""

import os
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.deploy.world import rss, working_in

from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.local_federation import LocalFederation, local_federation

ROUNDS = int(os.environ.get("WINNOW_SOAK_ROUNDS", "1500"))
PATIENCE = 20.0
"""Seconds that a round may take before the job counts as stuck, however busy the machine is."""
SETTINGS = (
    *("data.clients=4", "data.reference=60", "data.test=60", "model.name=linear", "engine.execution=loop"),
    *("select.fraction=0.5", "local.epochs=1"),
)
MEMORY_GROWTH = 3 << 20
"""Bytes that the middle and the end of a soak may differ by: what allocators do, and a few bytes a round."""
MB = 1e6


@dataclass(frozen=True, kw_only=True)
class Sample:
    round: int
    memory: int
    descriptors: int


def soak(federation: LocalFederation, rounds: int, described: object) -> dict[str, list[Sample]]:
    """Run a job; samples of every process by its name."""
    job = federation.connection.submit(described, min_sites=2)
    samples: dict[str, list[Sample]] = defaultdict(list)
    reached, since = 0, time.monotonic()
    while (state := job.state()).status not in ("finished", "failed", "aborted"):
        if state.round > reached:
            reached, since = state.round, time.monotonic()
        assert time.monotonic() - since < PATIENCE * 3, f"no round after {reached}: {state.reason}"
        for name, process in processes(federation).items():
            if sample := looked_at(process, state.round):
                samples[name].append(sample)
        time.sleep(1.0)
    assert (state.status, state.round) == ("finished", rounds), state.reason
    return samples


def processes(federation: LocalFederation) -> dict[str, int]:
    """Everybody, and each one's runner or worker."""
    found = {name: process.pid for name, process in federation.processes.items()}
    for name in list(found):
        for process in working_in(federation.kit(name).resolve()):
            found[f"{name}'s {'runner' if name == 'server' else 'worker'}"] = process
    return found


def looked_at(process: int, number: int) -> Sample | None:
    try:
        descriptors = sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return None
    memory = rss(process)
    return Sample(round=number, memory=memory, descriptors=descriptors) if memory else None


def between(samples: list[Sample], low: float, high: float) -> list[Sample]:
    return [each for each in samples if low * ROUNDS <= each.round <= high * ROUNDS]


def table(samples: dict[str, list[Sample]]) -> str:
    parts = [(0.1, 0.3), (0.45, 0.65), (0.8, 1.0)]
    head = "".join(f"{f'rounds {int(low * ROUNDS)}–{int(high * ROUNDS)}':>24}" for low, high in parts)
    lines = [f"{'process':<20}{head}"]
    for name, taken in samples.items():
        cells = ""
        for low, high in parts:
            chosen = between(taken, low, high)
            memory = statistics.median(each.memory for each in chosen) / MB if chosen else float("nan")
            descriptors = max((each.descriptors for each in chosen), default=0)
            cells += f"{f'{memory:.1f} MB, {descriptors} files':>24}"
        lines.append(f"{name:<20}{cells}")
    return "\n".join(lines)


@pytest.mark.slow(part="endurance")
def test_memory_and_descriptors_reach_a_plateau(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = describe_job("demo", rounds=ROUNDS, sets=SETTINGS)
    with local_federation(described, 2, tmp_path / "federation") as federation:
        samples = soak(federation, ROUNDS, described)
    with capsys.disabled():
        print(f"\n{table(samples)}")
    grown = []
    for name, taken in samples.items():
        middle, end = between(taken, 0.45, 0.65), between(taken, 0.8, 1.0)
        if not middle or not end:
            continue
        before, after = (statistics.median(each.memory for each in part) for part in (middle, end))
        if after - before > MEMORY_GROWTH:
            grown.append(f"{name} has grown from {before / MB:.1f} to {after / MB:.1f} MB")
        if max(each.descriptors for each in end) > max(each.descriptors for each in middle) + 2:
            grown.append(f"{name} has opened more and more files")
    assert len(samples) >= 6, samples.keys()
    assert not grown, grown
