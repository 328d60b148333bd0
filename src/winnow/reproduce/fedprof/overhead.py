"""Table 4: what profiles cost, by the fleet model (equations 31 and 34), beside the paper's averages."""

from dataclasses import dataclass

import numpy as np

from winnow.core import Work
from winnow.experiment.resolve import resolve
from winnow.experiment.schema import Experiment
from winnow.reproduce.blocks import Block, Grid, Text
from winnow.reproduce.fedprof.content import content
from winnow.reproduce.lines import Lines
from winnow.reproduce.paper import Piece
from winnow.runs.summary import JOULES_PER_WH

DEVICES = 100_000
"""The averages are those of so many devices, which leaves nothing to chance."""

ABOUT = (
    "Computed from the fleet model alone, at the paper's samples a client: seconds that an invited client spends on its"
    " profile on average (the paper does not say whether it averages over clients or takes the slowest, which would be"
    " longer), and energy of all the invited of a round. Shares are those of a client's whole round."
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of the paper: its preset, samples a client, and elements of a profile (each 8 bytes)."""

    title: str
    preset: str
    samples: int
    elements: int


TASKS = (
    Task(title="GasTurbine", preset="gas-turbine", samples=514, elements=128),
    Task(title="EMNIST digits", preset="emnist-digits", samples=480, elements=120),
    Task(title="CIFAR-10", preset="cifar10", samples=5_000, elements=24),
)


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """What profiling costs: seconds of a client in a round, Wh of a round, and both as shares of everything."""

    seconds: float
    wh: float
    seconds_share: float
    energy_share: float


def overhead(task: Task) -> Overhead:
    experiment = resolve(task.preset, algorithm="fedprof")
    fleet = experiment.fleet.draw(DEVICES, seed=0)
    costs = fleet.costs(np.arange(DEVICES), np.full(DEVICES, task.samples), _round_of_work(experiment, task))
    invited = experiment.select.invited(experiment.data.clients)
    return Overhead(
        seconds=float(costs.profiling_seconds.mean()),
        wh=invited * float(costs.profiling_joules.mean()) / JOULES_PER_WH,
        seconds_share=float(costs.profiling_seconds.mean() / costs.seconds.mean()),
        energy_share=float(costs.profiling_joules.mean() / costs.joules.mean()),
    )


def _round_of_work(experiment: Experiment, task: Task) -> Work:
    message = experiment.fleet.message_bytes(0)
    return Work(
        training_passes=experiment.local.passes(task.samples),
        profiling_passes=1,
        download_bytes=message,
        upload_bytes=message,
        profile_bytes=8 * task.elements,
    )


@dataclass(frozen=True, kw_only=True)
class OverheadTable(Piece):
    """Table 4 needs no run."""

    def computed(self, lines: Lines) -> bool:
        return False

    def body(self, lines: Lines) -> list[Block]:
        header = ("Task", "Seconds, paper", "Seconds, ours", "Wh a round, paper", "Wh a round, ours", "Time", "Energy")
        return [
            Text(ABOUT),
            Grid("The last two columns are shares of a round.", header, [_row(task) for task in TASKS]),
        ]


def _row(task: Task) -> list[str]:
    paper, ours = content("values.toml")["table4"][task.preset], overhead(task)
    return [
        task.title,
        f"{paper['seconds']:.3f}",
        f"{ours.seconds:.3f} ({ours.seconds / paper['seconds'] - 1:+.0%})",
        f"{paper['wh']:.3g}",
        f"{ours.wh:.3g} ({ours.wh / paper['wh'] - 1:+.0%})",
        f"{ours.seconds_share:.2%}",
        f"{ours.energy_share:.2%}",
    ]
