"""The reference summary beside a trained model: what owners compare their data with, alone and before they join.

It holds moments by class and how honest clients compare, and no row; of the run's clients the median and spread of the
assessment's nine statistics. The file may come from anybody: its size is looked
at first, then its header, then every array's type and shape, and whether it belongs to the model.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from winnow.config.schema import Experiment
from winnow.core import Arrays, DataError, RunError
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.core.untrusted_text import one_line
from winnow.experiment.build_learning_site import ModelSetup
from winnow.experiment.model_folder import digest_of_state
from winnow.learn.client_quality.departures import STATISTICS
from winnow.learn.client_quality.evidence import OUTCOMES
from winnow.learn.client_quality.evidence_pass import MAX_CLASSES
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.client_quality.score_table import ClientSpread
from winnow.learn.ensemble.ensemble_workflow import EnsembleWorkflow
from winnow.learn.stack import LOSSES
from winnow.learn.training_workflow import TrainingWorkflow
from winnow.runs import file_names
from winnow.runs.atomic_write import one_line_errors
from winnow.runs.checkpoint import save_arrays

MAX_FILE_BYTES, MAX_HEADER_CHARACTERS = 1 << 28, 1 << 16
HEADER = "winnow"
CENTRE, SPREAD = "clients.centre", "clients.spread"
Name = Annotated[str, Meta(max_length=1_000)]


class ReferenceHeader(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a client is looked at: as it would be in the federation that made the file."""

    format: Literal[1]
    parameters: Annotated[str, Meta(max_length=200)]
    """The digest of the model's."""
    layer: Name | None
    loss: Literal["mse", "cross-entropy", "nll", "bce"] | None
    classes: Annotated[int, Meta(ge=1, le=MAX_CLASSES)]
    edges: Annotated[list[float], Meta(max_length=MAX_CLASSES)]
    min_rows: Annotated[int, Meta(ge=1, le=1 << 31)]
    count_step: Annotated[int, Meta(ge=1, le=1 << 31)]
    false_alarms: Annotated[float, Meta(gt=0, lt=1)]
    targets: Annotated[list[Name], Meta(max_length=1_000)]
    """The columns that the model predicts, where data are tables."""


def write_reference_file(
    folder: Path,
    experiment: Experiment,
    model: ModelSetup,
    training: TrainingWorkflow | EnsembleWorkflow,
    private: frozenset[str],
) -> Path | None:
    """Write what owners need to compare their data through the best model; None where there is nothing to write: no
    reference set at the server, or no one model for all clients.

    Without a loss that owners can compute, nothing is said of what the model predicts.
    """
    path, parameters = folder / file_names.REFERENCE_SUMMARY, digest_of_state(training.best)
    with suppress(RunError):
        read_reference_file(folder, parameters)
        return path  # a finished run is only read
    found = None if training.assessor is None or private else training.assessor.summary_for_owners(training.best)
    if found is None:
        path.unlink(missing_ok=True)  # of fewer rounds, and so of another model
        return None
    summary, settings, spread = found
    known = LOSSES.get(model.loss.name) is model.loss
    header = ReferenceHeader(
        format=1,
        parameters=parameters,
        layer=model.evidence_layer,
        loss=model.loss.name if known else None,  # type: ignore[arg-type]  # one of those names
        classes=settings.classes,
        edges=list(settings.edges),
        min_rows=settings.min_rows,
        count_step=settings.count_step,
        false_alarms=experiment.quality.false_alarms,
        targets=list(experiment.data.targets),
    )
    summary = summary if known else _without_outcomes(summary)
    save_arrays(path, {**summary.arrays(), **_spread_arrays(spread)}, {HEADER: msgspec.json.encode(header).decode()})
    return path


def read_reference_file(folder: Path, parameters: str) -> tuple[ReferenceSummary, ReferenceHeader, ClientSpread | None]:
    """The summary in the folder of a model that has these parameters, and how much clients differed from it."""
    path = folder / file_names.REFERENCE_SUMMARY
    with one_line_errors(path):
        if not path.is_file():
            raise RunError(
                f"{folder} has no {path.name}: its run compared no data with a reference set at the server; "
                "ask the federation for one that did"
            )
        if path.stat().st_size > MAX_FILE_BYTES:
            raise RunError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB: it is not a reference summary")
        try:
            with safe_open(path, framework="np") as file:
                text = (file.metadata() or {}).get(HEADER, "")
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
        except (SafetensorError, AttributeError, TypeError, ValueError) as error:  # of types that NumPy has not
            raise _damaged(path, one_line(error)) from None
    try:
        header = from_json(text[:MAX_HEADER_CHARACTERS].encode(), ReferenceHeader)
        spread = _read_spread(arrays)
        summary = ReferenceSummary.of(arrays)
    except (UnreadableError, DataError) as error:
        raise _damaged(path, one_line(error)) from None
    if header.parameters != parameters:
        raise RunError(f"{path} belongs to another model than the one beside it; get both again from the federation")
    classes = {len(moments.counts) for moments in summary.moments.values()}
    if classes != {header.classes} or (OUTCOMES in summary.moments and header.loss is None):
        raise _damaged(path, "its header does not fit its arrays")
    if sorted(header.edges) != header.edges or (header.edges and len(header.edges) + 1 != header.classes):
        raise _damaged(path, "its bins do not fit its classes")
    return summary, header, spread


def _spread_arrays(spread: ClientSpread | None) -> Arrays:
    return {} if spread is None else {CENTRE: spread.centre, SPREAD: spread.spread}


def _read_spread(arrays: dict[str, NDArray[Any]]) -> ClientSpread | None:
    """Taken out of a file's arrays, which may come from anybody."""
    centre, spread = (arrays.pop(name, None) for name in (CENTRE, SPREAD))
    if centre is None and spread is None:
        return None
    for each in (centre, spread):
        if each is None or each.shape != (len(STATISTICS),) or each.dtype != np.float64 or not np.isfinite(each).all():
            raise DataError("the spread of clients is not a list of numbers")
    assert centre is not None
    assert spread is not None
    if (spread < 0).any():
        raise DataError("the spread of clients is negative")
    return ClientSpread(centre=centre, spread=spread)


def _without_outcomes(summary: ReferenceSummary) -> ReferenceSummary:
    kept = [block for block in summary.moments if block != OUTCOMES]
    return replace(
        summary,
        moments={block: summary.moments[block] for block in kept},
        fourth={block: summary.fourth[block] for block in kept},
        nulls={block: summary.nulls[block] for block in kept},
    )


def _damaged(path: Path, why: str) -> RunError:
    return RunError(f"{path} is damaged, or not Winnow's: {why[:200]}")
