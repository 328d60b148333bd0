"""Table 4: cost of profiling, by the fleet model (equations 31 and 34), beside the paper's averages."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.core import Work
from winnow.papers.fedprof.read_bundled_toml import read_package_toml
from winnow.papers.page_blocks import PageBlock, TableBlock, TextBlock
from winnow.papers.paper import PaperItem
from winnow.papers.result_json_lines import ResultLines
from winnow.runs.summary import JOULES_PER_WH

DEVICES = 100_000
"""The averages are those of so many devices, which leaves nothing to chance."""

ABOUT = (
    "Computed from the fleet model alone, at the paper's samples a client: seconds that a selected client spends on its"
    " profile on average, and those of the slowest client of a round (the paper does not say which it means); energy of"
    " all selected clients of a round. In brackets, the difference from the paper's. Shares are those of a client's"
    " whole round."
)


@dataclass(frozen=True, kw_only=True)
class OverheadCase:
    """A task of the paper: its preset, samples a client, and elements of a profile (each 8 bytes)."""

    title: str
    preset: str
    samples: int
    elements: int


OVERHEAD_CASES = (
    OverheadCase(title="GasTurbine", preset="gas-turbine", samples=514, elements=128),
    OverheadCase(title="EMNIST digits", preset="emnist-digits", samples=480, elements=120),
    OverheadCase(title="CIFAR-10", preset="cifar10", samples=5_000, elements=24),
)


@dataclass(frozen=True, kw_only=True)
class ProfilingOverhead:
    """What profiling costs: seconds of a client in a round and of the slowest, Wh of a round, and shares of
    everything.
    """

    seconds: float
    slowest_seconds: float
    wh: float
    seconds_share: float
    energy_share: float


def profiling_overhead(task: OverheadCase) -> ProfilingOverhead:
    experiment = resolve(task.preset, algorithm="fedprof")
    fleet = experiment.fleet.draw(DEVICES, seed=0)
    costs = fleet.costs(np.arange(DEVICES), np.full(DEVICES, task.samples), _round_of_work(experiment, task))
    selected = experiment.select.cohort_size(experiment.data.clients)
    return ProfilingOverhead(
        seconds=float(costs.profiling_seconds.mean()),
        slowest_seconds=_mean_of_slowest(costs.profiling_seconds, selected),
        wh=selected * float(costs.profiling_joules.mean()) / JOULES_PER_WH,
        seconds_share=float(costs.profiling_seconds.mean() / costs.seconds.mean()),
        energy_share=float(costs.profiling_joules.mean() / costs.joules.mean()),
    )


def _mean_of_slowest(seconds: NDArray[np.float64], selected: int) -> float:
    """Devices are alike and independent, so any `selected` of them in a row are a round's."""
    rounds = seconds[: len(seconds) // selected * selected].reshape(-1, selected)
    return float(rounds.max(axis=1).mean())


def _round_of_work(experiment: Experiment, task: OverheadCase) -> Work:
    message = experiment.fleet.message_bytes(0)
    return Work(
        training_passes=experiment.local.passes(task.samples),
        profiling_passes=1,
        download_bytes=message,
        upload_bytes=message,
        profile_bytes=8 * task.elements,
    )


@dataclass(frozen=True, kw_only=True)
class OverheadTable(PaperItem):
    """Table 4 needs no run."""

    def has_results(self, lines: ResultLines) -> bool:
        return False

    def blocks(self, lines: ResultLines) -> list[PageBlock]:
        header = (
            "Task",
            "Seconds, paper",
            "Seconds, ours",
            "Seconds of the slowest, ours",
            "Wh a round, paper",
            "Wh a round, ours",
            "Time",
            "Energy",
        )
        return [
            TextBlock(ABOUT),
            TableBlock("The last two columns are shares of a round.", header, [_row(task) for task in OVERHEAD_CASES]),
        ]


def _row(task: OverheadCase) -> list[str]:
    paper, ours = read_package_toml("values.toml")["table4"][task.preset], profiling_overhead(task)
    return [
        task.title,
        f"{paper['seconds']:.3f}",
        f"{ours.seconds:.3f} ({ours.seconds / paper['seconds'] - 1:+.0%})",
        f"{ours.slowest_seconds:.3f} ({ours.slowest_seconds / paper['seconds'] - 1:+.0%})",
        f"{paper['wh']:.3g}",
        f"{ours.wh:.3g} ({ours.wh / paper['wh'] - 1:+.0%})",
        f"{ours.seconds_share:.2%}",
        f"{ours.energy_share:.2%}",
    ]
