"""What a workflow says while it runs. Progress bars, run folders, reports and dashboards read this one stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core.task import NO_COST, Cost

Metrics: TypeAlias = Mapping[str, Mapping[str, float]]
"""Scores by the data they were measured on: {"reference": {"accuracy": 0.9, "loss": 0.3}, "test": {...}}."""

Verdict: TypeAlias = Literal["harmful", "suspect", "different", "cannot tell", "fine"]
"""What is thought of a client's data."""
HARMFUL: Final = "harmful"
SUSPECT: Final = "suspect"
DIFFERENT: Final = "different"
CANNOT_TELL: Final = "cannot tell"
FINE: Final = "fine"
VERDICTS: tuple[Verdict, ...] = (HARMFUL, SUSPECT, DIFFERENT, CANNOT_TELL, FINE)
"""The worst first; what cannot be told stands before what is known to be fine."""
ALARMS: tuple[Verdict, ...] = (HARMFUL, SUSPECT)
"""The verdicts from which something follows."""
READMIT: Final = "readmit"
KEEP: Final = "keep"


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something happened at a moment of the run's own clock, in device seconds."""

    kind: ClassVar[str]
    round: int
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated(Event):
    """The model of a version was evaluated. Version 0 is the untrained model."""

    kind = "evaluated"
    version: int
    metrics: Metrics


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected(Event):
    """Clients were asked to train; `counts` exceeds one where a client was drawn more than once."""

    kind = "selected"
    version: int
    clients: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored(Event):
    """How likely each client was to be drawn: the scores λ/Λ of equation 13, which sum to one."""

    kind = "scored"
    scores: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected(Event):
    """A client's reply was not aggregated, or it did not answer."""

    kind = "rejected"
    client: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundFinished(Event):
    """A new version of the model stands. `joules` and `cost` are this round's, over all devices that worked."""

    kind = "round_finished"
    version: int
    metrics: Metrics
    aggregated: NDArray[np.int64]
    loss: float = float("nan")
    joules: float = 0.0
    cost: Cost = NO_COST


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessed(Event):
    """Clients' data were compared with the reference's: of each of `clients` a score (1 is the alarm threshold), a
    verdict, and the evidence in words.
    """

    kind = "assessed"
    version: int
    clients: NDArray[np.int64]
    scores: NDArray[np.float64]
    verdicts: tuple[str, ...]
    evidence: tuple[str, ...]

    def __post_init__(self) -> None:
        if {len(self.scores), len(self.verdicts), len(self.evidence)} != {len(self.clients)}:
            raise ValueError("every assessed client has a score, a verdict and evidence")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyApplied(Event):
    """A client's verdict had a consequence: "exclude", "down-weight", or "readmit", which ends either; "keep"
    where `quality.keep` prevented it.
    """

    kind = "policy_applied"
    client: int
    action: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped(Event):
    """The run ends before its rounds are done, and why: its privacy budget would not last for another one."""

    kind = "stopped"
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Released(Event):
    """A step of an analysis opened so many `cells`, while `hidden` others had too few rows behind them; with noise,
    what ε that cost by itself.
    """

    kind = "released"
    step: str
    cells: int
    hidden: int = 0
    epsilon: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered(Event):
    """The question of an analysis is answered: in which file, and that file's SHA-256."""

    kind = "answered"
    file: str
    digest: str


AnyEvent: TypeAlias = (
    Evaluated | Selected | Scored | Rejected | RoundFinished | Assessed | PolicyApplied | Stopped | Released | Answered
)
