"""What of a paper is left to compute on this machine, and what cannot be."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from winnow.data import catalogue
from winnow.papers.paper import Paper, PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_lines import ResultLines


@dataclass(frozen=True, kw_only=True)
class ReproductionPlan:
    """Runs and measurements that are missing, and one line for everything that is left out."""

    runs: tuple[PaperRun, ...]
    measurements: tuple[PaperItem, ...]
    left_out: tuple[str, ...]


def plan_reproduction(
    paper: Paper, names: Sequence[str], wanted: ReproductionOptions, known: ResultLines
) -> ReproductionPlan:
    """What is missing among the known lines. A long computation that nobody named is left to an accelerator."""
    runs: dict[tuple[str, ...], PaperRun] = {}
    measurements, left_out = list[PaperItem](), dict[str, None]()
    present = {each.name for each in catalogue(wanted.data_directory) if each.present}
    for piece in paper.named(names):
        missing = [run for run in piece.runs(wanted) if run.key not in known]
        left_out |= dict.fromkeys(f"{piece.name}: {name} is not known to this version" for name in piece.unknown())
        if not missing and piece.measured(wanted, known):
            continue
        absent = piece.data_sets(wanted) - present
        if absent:
            left_out[f"{piece.name}: left out; {', '.join(sorted(absent))} is not here (winnow data get NAME)"] = None
        elif piece.wants_accelerator and piece.name not in names and not torch.cuda.is_available():
            left_out[f"{piece.name}: left out; a CPU would take days (name {piece.name} to run it all the same)"] = None
        else:
            runs |= {run.key: run for run in missing}
            measurements += [] if piece.measured(wanted, known) else [piece]
    return ReproductionPlan(runs=tuple(runs.values()), measurements=tuple(measurements), left_out=tuple(left_out))
