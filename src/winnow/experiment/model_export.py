"""A trained model as a file for other programs: ONNX or TorchScript, from raw numbers to probabilities or values.

The graph contains the numeric part of the preprocessing: missing numbers are filled in, columns and channels scaled,
and the values of a regression brought back to their units. Text has no place in it, so a model that was trained on
categories takes features: what `preprocessing.transform` makes of rows.
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.core import ConfigError, ModelError
from winnow.core.installed_package import install_command
from winnow.core.untrusted_text import one_line
from winnow.data.preprocessing import IMAGE_NDIM, Affine, InputSpec, Preprocessing
from winnow.runs.atomic_write import one_line_errors, write_atomically

if TYPE_CHECKING:
    from winnow.experiment.saved_model import SavedModel

RAW, TRANSFORMED = "rows", "features"
PROBABILITIES, VALUES = "probabilities", "values"
TRIED_ROWS = 5
TOLERANCE = 1e-4
"""Of what a file gives, relative to what the model gives here."""


def export_onnx(saved: "SavedModel", path: Path) -> Path:
    try:
        onnxruntime = import_onnxruntime()
        import onnxscript  # noqa: F401, PLC0415 - torch's exporter needs it
    except ImportError:
        raise ConfigError(f"ONNX needs an extra: {install_command('export')}") from None
    graph, samples = ModelGraph(saved).eval(), _samples(saved, 2)
    rows = torch.export.Dim("rows")
    with _quiet(), _one_line_failure("ONNX"), torch.no_grad():
        program = torch.onnx.export(
            graph,
            tuple(samples.values()),
            input_names=list(samples),
            output_names=[graph.output_name],
            dynamic_shapes=(tuple({0: rows} for _ in samples),),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.model.metadata_props["winnow"] = _description(saved)

        def write(temporary: Path) -> None:
            program.save(str(temporary))
            session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
            tried = _samples(saved, TRIED_ROWS)
            found = session.run(None, {name: tensor.numpy() for name, tensor in tried.items()})[0]
            _compare(found, graph(*tried.values()))

        with one_line_errors(path):
            write_atomically(path, write)
    return path


def import_onnxruntime() -> Any:
    """Import ONNX Runtime without its telemetry, which would record this use of it and report it to its vendor."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # noqa: PLC0415 - an extra

    return onnxruntime


def export_torchscript(saved: "SavedModel", path: Path) -> Path:
    graph, samples = ModelGraph(saved).eval(), _samples(saved, 2)
    with _quiet(), _one_line_failure("TorchScript"), torch.no_grad():
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            graph, tuple(samples.values()), check_trace=False
        )
        extra = {"winnow.json": _description(saved)}

        def write(temporary: Path) -> None:
            torch.jit.save(traced, str(temporary), _extra_files=extra)
            tried = tuple(_samples(saved, TRIED_ROWS).values())
            again = torch.jit.load(str(temporary))  # type: ignore[no-untyped-call]
            _compare(again(*tried).numpy(), graph(*tried))

        with one_line_errors(path):
            write_atomically(path, write)
    return path


class ModelGraph(nn.Module):
    """The model with the numbers of its preprocessing around it."""

    shift: Tensor
    width: Tensor

    def __init__(self, saved: "SavedModel") -> None:
        super().__init__()
        self.packed = bool(saved.preprocessing.inputs)
        self.model = deepcopy(saved.adapted()).requires_grad_(False)
        self.encoders = nn.ModuleList(_encoder(saved.preprocessing, spec) for spec in _specs(saved))
        targets = saved.preprocessing.targets
        self.output_name = VALUES if targets else PROBABILITIES
        self.register_buffer("shift", torch.tensor([target.shift for target in targets], dtype=torch.float64))
        self.register_buffer("width", torch.tensor([target.width for target in targets], dtype=torch.float64))

    def forward(self, *inputs: Tensor) -> Tensor:
        encoded = [encoder(values) for encoder, values in zip(self.encoders, inputs, strict=True)]
        x = torch.cat([_flat(part, encoded) for part in encoded], 1) if self.packed else encoded[0]
        outputs: Tensor = self.model(x)
        if self.output_name == VALUES:
            values = outputs.unsqueeze(1) if outputs.dim() == 1 else outputs.flatten(1)
            return values.double() * self.width + self.shift
        if outputs.dim() == 1 or (outputs.dim() == 2 and outputs.shape[1] == 1):
            logit = outputs.reshape(-1, 1)
            outputs = torch.cat([torch.zeros_like(logit), logit], 1)
        return torch.softmax(outputs, -1)


class _Columns(nn.Module):
    """Numbers of a table, NaN where one is missing, as features."""

    fill: Tensor
    shift: Tensor
    width: Tensor

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        columns = preprocessing.columns
        for name in ("fill", "shift", "width"):
            values = torch.tensor([getattr(column, name) for column in columns], dtype=torch.float64)
            self.register_buffer(name, values)
        self.marked = [place for place, column in enumerate(columns) if column.marks_missing]
        mark_of = {place: len(columns) + number for number, place in enumerate(self.marked)}
        beside = [(place, mark_of[place]) if place in mark_of else (place,) for place in range(len(columns))]
        self.order = [place for places in beside for place in places]

    def forward(self, rows: Tensor) -> Tensor:
        missing = torch.isnan(rows)
        scaled = (torch.where(missing, self.fill, rows) - self.shift) / self.width
        beside = torch.cat([scaled.float(), missing[:, self.marked].float()], 1)
        return beside[:, self.order]


class _Scaled(nn.Module):
    """An array of numbers, scaled as a whole, by channel or by element."""

    shift: Tensor
    width: Tensor

    def __init__(self, scaling: Affine, shape: tuple[int, ...]) -> None:
        super().__init__()
        by_channel = len(shape) + 1 == IMAGE_NDIM and len(scaling.shift) > 1
        fitting = (1, -1, 1, 1) if by_channel else (1, *shape) if len(scaling.shift) > 1 else (1,)
        self.register_buffer("shift", torch.tensor(scaling.shift, dtype=torch.float32).reshape(fitting))
        self.register_buffer("width", torch.tensor(scaling.width, dtype=torch.float32).reshape(fitting))

    def forward(self, values: Tensor) -> Tensor:
        return (values - self.shift) / self.width


def _specs(saved: "SavedModel") -> tuple[InputSpec, ...]:
    """What the graph takes."""
    preprocessing = saved.preprocessing
    if preprocessing.columns:
        raw = all(column.kind == "number" for column in preprocessing.columns)
        size = len(preprocessing.columns if raw else preprocessing.features)
        return (InputSpec(name=RAW if raw else TRANSFORMED, shape=(size,)),)
    if preprocessing.inputs:
        return preprocessing.inputs
    return (preprocessing.array or InputSpec(name=RAW, shape=saved.sample_shape),)


def _encoder(preprocessing: Preprocessing, spec: InputSpec) -> nn.Module:
    if preprocessing.columns and spec.name == RAW:
        return _Columns(preprocessing)
    return nn.Identity() if spec.scaling is None else _Scaled(spec.scaling, spec.shape)


def _flat(part: Tensor, encoded: Sequence[Tensor]) -> Tensor:
    """An input's values side by side: whole numbers if all inputs are, as they are packed."""
    whole = not any(each.is_floating_point() for each in encoded)
    return part.flatten(1) if whole else part.flatten(1).float()


def _samples(saved: "SavedModel", rows: int) -> dict[str, Tensor]:
    """Inputs to try a graph with; tokens are 0, which every vocabulary has."""
    generator = np.random.default_rng(rows)
    preprocessing, samples = saved.preprocessing, {}
    for place, spec in enumerate(_specs(saved)):
        name = spec.name or (RAW if len(preprocessing.inputs) < 2 else f"input_{place}")
        values: NDArray[Any] = generator.normal(size=(rows, *spec.shape))
        if preprocessing.columns and spec.name == RAW:
            values = values * [column.width for column in preprocessing.columns]
            values += [column.shift for column in preprocessing.columns]
            values[0] = np.nan
            samples[name] = torch.from_numpy(values)
        elif spec.kind == "token":
            samples[name] = torch.zeros(values.shape, dtype=torch.int64)
        else:
            scaling = spec.scaling or Affine(shift=(0.0,), width=(1.0,))
            samples[name] = torch.from_numpy(scaling.undo(values).astype(np.float32))
    return samples


def _description(saved: "SavedModel") -> str:
    """What the file says of itself: columns, classes and targets, in the order of inputs and outputs."""
    preprocessing = saved.preprocessing
    return json.dumps(
        {
            "inputs": {name: list(tensor.shape[1:]) for name, tensor in _samples(saved, 1).items()},
            "columns": [column.name for column in preprocessing.columns],
            "features": list(preprocessing.features),
            "classes": None if saved.classes is None else list(saved.classes),
            "targets": [target.name for target in preprocessing.targets],
        },
        ensure_ascii=False,
    )


def _compare(found: NDArray[Any], expected: Tensor) -> None:
    if not np.allclose(found, expected.numpy(), rtol=TOLERANCE, atol=TOLERANCE):
        raise ModelError("the exported model does not give the outputs of this one; it may branch on its inputs")


@contextmanager
def _one_line_failure(form: str) -> Iterator[None]:
    try:
        yield
    except (ModelError, ConfigError):
        raise
    except Exception as error:  # a user's own code is traced, and exporters fail in any way
        raise ModelError(f"the model cannot be exported to {form}: {one_line(str(error).strip())[:300]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters warn of what is theirs to mend."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
