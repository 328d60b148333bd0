"""Who runs the work, and how each is started."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.rivals.measure import Start, free_bytes

ROUNDS = {"gasturbine": 50, "mnist": 10}
PRESETS = {"gasturbine": "gas-turbine", "mnist": "mnist"}
THE_WORK = {
    "gasturbine": [
        "data.corruptions=[]",
        "data.test=0",
        "model.hidden=[64, 32]",
        "local.name=sgd",
        "local.learning_rate=0.005",
        "local.momentum=0.9",
        "local.decay=1",
    ],
    "mnist": [
        "data.corruptions=[]",
        "data.reference=10000",
        "data.test=0",
        "local.learning_rate=0.01",
        "local.decay=1",
    ],
}
"""What makes of a preset the work that the rivals' scripts do."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
GIGABYTE = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where things are."""

    data: Path
    scripts: Path
    venvs: Path


@dataclass(frozen=True, kw_only=True)
class Contender(ABC):
    name: str

    @abstractmethod
    def missing(self, work: str, places: Places) -> str:
        """Why it cannot take part; empty if it can."""

    @abstractmethod
    def start(self, work: str, rounds: int, places: Places, scratch: Path) -> Start:
        """How its process is started; it may write to the folder `scratch`."""


@dataclass(frozen=True, kw_only=True)
class Winnow(Contender):
    """`winnow run`, as a user types it."""

    algorithm: str = "fedavg-rp"
    sets: Mapping[str, Sequence[str]] = field(default_factory=lambda: THE_WORK)
    compiled: bool = True

    def missing(self, work: str, places: Places) -> str:
        return ""

    def start(self, work: str, rounds: int, places: Places, scratch: Path) -> Start:
        program, out = Path(sys.executable).with_name("winnow"), scratch / "run"
        chosen = [argument for each in self.sets[work] for argument in ("--set", each)]
        asked = ["--algorithm", self.algorithm, "--rounds", str(rounds), *chosen]
        return Start(
            command=[str(program), "run", PRESETS[work], *asked, "--data", str(places.data), "--out", str(out)],
            environment={} if self.compiled else {"XDG_CACHE_HOME": str(scratch)},
            log=out / "events.jsonl",
            score=_reference_score,
        )


@dataclass(frozen=True, kw_only=True)
class Rival(Contender):
    """A script in an environment of its own. It takes `arguments` by work; other work it does not do."""

    venv: str
    script: str
    launcher: Sequence[str] = ("python",)
    arguments: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict.fromkeys(ROUNDS, ()))
    environment: Mapping[str, str] = field(default_factory=dict)
    most_rounds: int = sys.maxsize
    memory: int = 0

    def missing(self, work: str, places: Places) -> str:
        if work not in self.arguments:
            return "not tried"
        if not self._program(places).exists():
            return f"no environment {places.venvs / self.venv}"
        if free_bytes() < self.memory:
            return f"needs {self.memory / GIGABYTE:.0f} GB of free memory"
        return ""

    def start(self, work: str, rounds: int, places: Places, scratch: Path) -> Start:
        script = [str(places.scripts / self.script), str(places.data), work]
        own = [str(scratch) if argument == "SCRATCH" else argument for argument in self.arguments[work]]
        asked = ["--rounds", str(min(rounds, self.most_rounds))]
        log = scratch / "log"
        return Start(
            command=[str(self._program(places)), *self.launcher[1:], *script, *own, *asked],
            environment={**self.environment, "PEER_LOG": str(log)},
            log=log,
            score=lambda finished: finished.get("metric"),
        )

    def _program(self, places: Places) -> Path:
        return places.venvs / self.venv / "bin" / self.launcher[0]


def _reference_score(finished: Mapping[str, Any]) -> float | None:
    scores: Mapping[str, float] = finished["metrics"]["reference"]
    return next(value for name, value in scores.items() if name != "loss")


def _always(*arguments: str) -> dict[str, Sequence[str]]:
    return dict.fromkeys(ROUNDS, arguments)


CONTENDERS = (
    Winnow(name="Winnow"),
    Rival(name="Flower", venv="flower", script="flower_peer.py"),
    Rival(
        name="pfl, 2 processes",
        venv="pfl",
        script="pfl_peer.py",
        launcher=("torchrun", "--nproc_per_node", "2"),
        environment=ONE_THREAD,
    ),
    Rival(name="plain loop, 2 processes", venv="base", script="plain_peer.py", arguments=_always("--workers", "2")),
    Rival(name="plain loop, 1 thread", venv="base", script="plain_peer.py", arguments=_always("--threads", "1")),
    Rival(name="torch.func.vmap", venv="base", script="cohort_peer.py", arguments=_always("--how", "vmap")),
    Rival(name="stacked by hand", venv="base", script="cohort_peer.py", arguments={"gasturbine": ("--how", "bmm")}),
    Rival(name="JAX, jit + vmap + scan", venv="jax", script="jax_peer.py"),
    Rival(
        name="NVFlare",
        venv="nvflare",
        script="nvflare_peer.py",
        arguments={
            "gasturbine": ("SCRATCH", "--threads", "50"),
            "mnist": ("SCRATCH", "--clients", "25", "--threads", "25"),
        },
        most_rounds=6,
        memory=20 * GIGABYTE,
    ),
)
"""The slow and heavy one comes last."""

AS_PRESET: dict[str, Sequence[str]] = dict.fromkeys(ROUNDS, ())
STARTS = (
    Winnow(name="fedavg-rp", sets=AS_PRESET),
    Winnow(name="fedprof, its first profiles included", algorithm="fedprof", sets=AS_PRESET),
    Winnow(name="fedavg-rp, nothing compiled yet", sets=AS_PRESET, compiled=False),
)
"""Presets as they are, to see how soon a run gets going."""
