"""What a federation would say of an owner's data, found out by the owner alone: nothing is sent anywhere."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from winnow.core import DataError, ModelError, RunError
from winnow.core.untrusted_text import one_line
from winnow.data.file_formats import OWN_FILE_TYPES, name_from_file, own_file_type, read_npz
from winnow.data.fit_preprocessing import Reading, data_set_of
from winnow.data.hidden_labels import labelled
from winnow.data.tables import open_table
from winnow.data.types import DataSet
from winnow.experiment.model_folder import read_description
from winnow.experiment.reference_file import ReferenceHeader, read_reference_file
from winnow.experiment.saved_model import SavedModel, load_model
from winnow.learn.client_quality.assessment import assess
from winnow.learn.client_quality.client_findings import DataNames, client_findings
from winnow.learn.client_quality.copied_rows import distinct_rows
from winnow.learn.client_quality.departures import measure_departures
from winnow.learn.client_quality.difference_size import difference_size
from winnow.learn.client_quality.evidence import REPRESENTATION, ClientEvidence
from winnow.learn.client_quality.evidence_pass import EvidencePass, SampleClasses
from winnow.learn.client_quality.findings import Finding
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import LOSSES, model_state


@dataclass(frozen=True, kw_only=True)
class OwnCheck:
    """The line of the clients' table that these data would have, and all that was found in them."""

    name: str
    samples: int
    score: float
    """1 is the alarm threshold; 0 is expected of an honest client."""
    verdict: str
    evidence: str
    findings: Sequence[Finding]

    def record(self) -> dict[str, Any]:
        line = {key: getattr(self, key) for key in ("name", "samples", "score", "verdict", "evidence")}
        return line | {"findings": [each.text for each in self.findings]}


def check_own_data(folder: Path, data: Path, targets: tuple[str, ...] = (), *, factory: str | None = None) -> OwnCheck:
    """Compare an owner's file with the reference summary in the model's folder, as the federation would.

    `targets` names the columns to predict where they are not called as in the federation, and `factory` what builds
    a model whose code is not in the folder.
    """
    description, _ = read_description(folder)
    if description.encode is not None:
        raise ModelError("a check compares rows with the reference set, and this model takes an encoder's features")
    saved = load_model(folder, factory=factory)
    summary, header, others = read_reference_file(folder, description.parameters.digest)
    rows = _read(data, saved, targets or tuple(header.targets))
    evidence = _evidence(saved, folder, header, summary, torch.from_numpy(rows.x), torch.from_numpy(rows.y))
    names = DataNames.of(saved.preprocessing, saved.sample_shape, rows.classes)
    try:
        departures = measure_departures(summary, evidence)
    except DataError as error:
        raise RunError(f"{folder}: the reference summary does not fit the model: {one_line(error)}") from None
    findings = client_findings(evidence, summary, names)
    assessed = assess(
        {0: [departures]},
        false_alarms=header.false_alarms,
        findings=lambda _: findings,
        size_of=lambda _: difference_size(evidence, summary, names.inputs),
        others=others,
    )[0]
    return OwnCheck(
        name=name_from_file(data),
        samples=len(rows),
        score=assessed.score,
        verdict=assessed.verdict,
        evidence=assessed.evidence,
        findings=findings,
    )


def _read(data: Path, saved: SavedModel, targets: tuple[str, ...]) -> DataSet:
    """The owner's rows and targets, as the model's preprocessing makes them."""
    kind = own_file_type(data)
    if kind is None:
        raise DataError(f"{data}: data come in {', '.join(OWN_FILE_TYPES)} files")
    if not data.is_file():
        raise DataError(f"there is no file {data}")
    reading = Reading(
        name=name_from_file(data),
        task="regression" if saved.preprocessing.targets else "classification",
        targets=targets,
        stated=saved.preprocessing.model_copy(update={"classes": saved.classes}),
        file=str(data),
    )
    if kind == ".npz":
        held = read_npz(data, ("x", "y"))
        rows = data_set_of(held["x"], held["y"], reading)
    elif not targets:
        raise DataError(f"{data}: name the column to predict: --targets COLUMN")
    else:
        rows = data_set_of(open_table(data), None, reading)
    if rows.x.shape[1:] != saved.sample_shape:
        raise DataError(f"{data}: samples have shape {rows.x.shape[1:]}; the model was trained on {saved.sample_shape}")
    known = labelled(rows.y)
    if not known.any():
        raise DataError(f"{data}: no row has a label; data are compared class by class")
    return rows if known.all() else replace(rows, x=rows.x[known], y=rows.y[known], owners=None)


def _evidence(
    saved: SavedModel, folder: Path, header: ReferenceHeader, summary: ReferenceSummary, x: Tensor, y: Tensor
) -> ClientEvidence:
    """What the federation would ask of a client that holds these samples."""
    module, classes = saved.adapted(), SampleClasses(count=header.classes, edges=tuple(header.edges))
    layer = header.layer if REPRESENTATION in summary.moments else None
    if layer is not None and layer not in dict(module.named_modules()):
        raise RunError(f"{folder}: the reference summary names a layer that the model does not have")
    loss = LOSSES[header.loss or ("mse" if y.is_floating_point() else "cross-entropy")]
    looking, blocks = EvidencePass(ModelEvaluator(module, loss, layer), saved.outputs), tuple(summary.moments)
    try:
        found = looking.moments(model_state(module), x, y, [torch.arange(len(x))], classes, blocks)[0]
    except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:  # a module may fail in any way
        raise ModelError(f"the model does not accept the rows: {one_line(error)}") from error
    told = {block: each.coarse(header.min_rows, header.count_step) for block, each in found.items()}
    counted = None if summary.distinct_rows is None else distinct_rows(x)
    return ClientEvidence(rows=len(x), distinct_rows=counted, blocks=told)
