"""What a run is called: enough to tell it from others and to compare them."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self, TypeAlias

import msgspec

from winnow.core import RunError
from winnow.runs.verify_files import REPAIR_ADVICE

SCHEMA = 2
TRAINING = "training"
WHO_LEARNS_WHAT = "who_learns_what"
"""The lines of that name in a configuration, where a run has no settings from which they follow."""

RunClock: TypeAlias = Literal["device", "wall", "none"]
"""Whose seconds a run's are: those of simulated devices, or real ones; "none" where the clients are owners of real data
whose devices nobody described, so that neither time nor energy means anything.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLabel:
    """A run's name, algorithm and seed, its metric and on whose data, the target; when and where it was started."""

    name: str
    algorithm: str
    seed: int
    metric: str
    target: float | None = None
    inputs: str = ""
    evaluated_by: Literal["reference", "clients", "tuned"] = "reference"
    clock: RunClock = "device"
    started: str = ""
    """When, in UTC: 2026-11-16T07:01:00+00:00."""
    machine: str = ""
    commit: str = ""
    """Of the repository in which the run was started, if it was in one."""
    lower_is_better: bool = False
    """Whether a lower value of the metric is a better one."""
    kind: str = TRAINING
    """What was run: a training, or the kind of question that an analysis answers."""

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            schema = record.pop("schema")
            if schema == 1:
                raise RunError(
                    f"{path.parent} was made by Winnow 0.1, whose log this version does not read; run it again or "
                    "use 0.1"
                )
            if schema != SCHEMA:
                raise RunError(f"{path} has schema {schema}; this version of Winnow reads schema {SCHEMA}")
            return msgspec.convert(record, cls)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            why = error if isinstance(error, ValueError) else "it does not describe a run"
            raise RunError(f"{path} is damaged: {why}; {REPAIR_ADVICE}") from None
