"""What of a paper is left to compute on this machine, and what cannot be."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from winnow.data import catalogue
from winnow.papers.paper import Paper, PaperItem, PaperRun, ReproductionOptions
from winnow.papers.result_json_lines import ResultLines


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
    wanted = replace(wanted, known=known)
    runs: dict[tuple[str, ...], PaperRun] = {}
    measurements, left_out = list[PaperItem](), dict[str, None]()
    present = {each.name for each in catalogue(wanted.data_directory) if each.present}
    for item in paper.select_items(names):
        missing = [run for run in item.runs(wanted) if run.key not in known]
        left_out |= dict.fromkeys(
            f"{item.name}: this version does not implement {name}" for name in item.unknown_algorithms()
        )
        if not missing and item.measured(wanted, known):
            continue
        absent = item.data_sets(wanted) - present
        if absent:
            left_out[f"{item.name}: skipped; missing data {', '.join(sorted(absent))} (winnow data get NAME)"] = None
        elif item.needs_gpu and not item.names & {*names} and not torch.cuda.is_available():
            left_out[f"{item.name}: skipped; it would take days on a CPU (name {item.name} to run it anyway)"] = None
        else:
            runs |= {run.key: run for run in missing}
            measurements += [] if item.measured(wanted, known) else [item]
    return ReproductionPlan(runs=tuple(runs.values()), measurements=tuple(measurements), left_out=tuple(left_out))
