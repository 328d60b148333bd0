"""A trained model as it is used: raw rows go in, labels or values in their own units come out."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.config.schema import Experiment, InMemoryModel
from winnow.core import ConfigError, DataError, ModelError
from winnow.core.untrusted_text import one_line
from winnow.data import Preprocessing
from winnow.data.preprocessing import Affine, Label, TargetSpec
from winnow.experiment.encode_data import SampleEncoder
from winnow.experiment.model_card import card_text
from winnow.experiment.model_card_data import DataSizes, ModelInfo, model_info
from winnow.experiment.model_folder import (
    ModelDescription,
    build_named_model,
    create_folder,
    digest_of_state,
    load_parameters,
    read_description,
    stored_description,
    stored_encoder,
    stored_feature_scaling,
    write_description,
)
from winnow.experiment.provenance import Provenance
from winnow.experiment.standardise_features import MORE_ROWS, scaling_of
from winnow.learn.adapted_model import AdaptedModel, own_module
from winnow.learn.encoders import EncodeSettings
from winnow.learn.extended_model import model_without_heads
from winnow.learn.models import ModelSettings, PythonModel
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.sklearn_models import estimator_model, is_estimator
from winnow.learn.stack import ModelState, model_state
from winnow.runs.atomic_write import one_line_errors
from winnow.runs.output_file import check_output
from winnow.runs.summary import Summary

ONNX_FILES, TORCHSCRIPT_FILES = (".onnx",), (".pt", ".pth", ".ts")
BATCH = 1024
"""Rows that are predicted together: outputs do not depend on it, memory does."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SavedModel:
    """A module with all that it takes to use it on raw rows: columns, categories, scales, classes and units."""

    model: nn.Module
    preprocessing: Preprocessing
    settings: ModelSettings
    sample_shape: tuple[int, ...]
    outputs: int
    """Classes, or values of a regression."""
    built_outputs: int
    """The outputs of a model that is built by name."""
    info: ModelInfo
    """Where it comes from: data, algorithm, scores, date."""
    output: str | None = None
    """Which of the model's outputs is the prediction, where it has several."""
    encode: EncodeSettings | None = None
    """The frozen encoder whose features the model takes, where it takes any."""
    feature_scaling: Affine | None = None
    """By which its features are standardised: the numbers of the run's reference set, or those of `standardised_by`."""

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The labels in the order of the columns of `predict_proba`; None in a regression."""
        return None if self.preprocessing.targets else tuple(self.preprocessing.labels(self.outputs))

    @property
    def card(self) -> str:
        """The model's card, in Markdown."""
        return card_text(self.info, self.preprocessing)

    def predict(self, rows: Any) -> NDArray[Any]:
        """The label of each row as the data had it, or its value in the original units.

        `rows` are raw, as in training: a pandas or polars frame, a dict of columns, a list of dicts or an array.
        """
        return self.preprocessing.decode(self._outputs(rows))

    def predict_proba(self, rows: Any) -> NDArray[np.float64]:
        """The probability of each class, a row each, in the order of `classes`."""
        return self.preprocessing.probabilities(self._outputs(rows))

    def standardised_by(self, rows: Any) -> Self:
        """The model for an owner with these raw rows, labelled or not: features are standardised by their means and
        deviations, as every client did with its own in training (`encode.scale`).
        """
        if self.encode is None or self.encode.scale == "none":
            raise ModelError("the model takes no standardised features (encode.scale); use it as it is")
        return replace(self, feature_scaling=scaling_of(self._features(self.encode, rows), "the owner", MORE_ROWS))

    def save(self, folder: str | Path) -> Path:
        """Write a folder that `winnow.load` reads: parameters, preprocessing and a card. Nothing in it is a pickle."""
        refuse_incomplete(self.info)
        path, state = Path(folder), model_state(self.model)
        create_folder(path, state)
        self.describe(path, "model.safetensors", state)
        return path

    def described_in(self, run: Path, state: ModelState) -> Self:
        """This model of a finished run, as the run's folder describes it; written if it does not yet do so."""
        known = stored_description(run)
        if known and known.info.rounds == self.info.rounds and known.parameters.digest == digest_of_state(state):
            return replace(self, info=known.info)
        self.describe(run, "best.safetensors", state)
        return self

    def describe(self, folder: Path, file: Literal["model.safetensors", "best.safetensors"], state: ModelState) -> None:
        """Write model.json and the card into a folder that holds this state in a file."""
        with one_line_errors(folder):
            write_description(
                folder,
                file=file,
                state=state,
                settings=self.settings,
                output=self.output,
                sample_shape=self.sample_shape,
                outputs=self.outputs,
                built_outputs=self.built_outputs,
                preprocessing=self.preprocessing,
                info=self.info,
                encode=self.encode,
                feature_scaling=self.feature_scaling,
            )

    def export_onnx(self, path: str | Path) -> Path:
        """Write the model in ONNX, and try it in onnxruntime; docs/use-the-model.md names its inputs and outputs."""
        from winnow.experiment.model_export import export_onnx  # noqa: PLC0415 - an extra, and slow to import

        check_output(Path(path), *ONNX_FILES)
        self._refuse_export()
        return export_onnx(self, Path(path))

    def export_torchscript(self, path: str | Path) -> Path:
        """Write the model in TorchScript, which C++ programs read; inputs and outputs are those of `export_onnx`."""
        from winnow.experiment.model_export import export_torchscript  # noqa: PLC0415 - its own machinery

        check_output(Path(path), *TORCHSCRIPT_FILES)
        self._refuse_export()
        return export_torchscript(self, Path(path))

    def _refuse_export(self) -> None:
        refuse_incomplete(self.info)
        if self.encode is not None:
            scaled = ", standardised by model.feature_scaling" if self.encode.scale == "standard" else ""
            raise ModelError(
                f"the model takes features of the encoder '{self.encode.name}', which no exported file can hold; "
                f"use winnow predict, or export model.model with torch, which takes these features{scaled}"
            )

    def _outputs(self, rows: Any) -> NDArray[Any]:
        refuse_incomplete(self.info)
        if self.encode is not None and self.encode.scale == "standard" and self.feature_scaling is None:
            raise ModelError(
                "the run had no reference set to standardise features by (encode.scale); "
                "pass rows of the owner who uses the model: model.standardised_by(rows).predict(rows)"
            )
        x = self.preprocessing.transform(rows) if self.encode is None else self._features(self.encode, rows)
        if self.encode is not None and not len(x):  # how wide they would be, only the encoder knows
            x = np.empty((0, *self.sample_shape), np.float32)
        if x.shape[1:] != self.sample_shape:
            raise DataError(f"rows: samples have shape {x.shape[1:]}; the model was trained on {self.sample_shape}")
        if self.feature_scaling is not None:
            x = self.feature_scaling.apply(x)
        try:
            outputs = torch.cat(list(self._batches(x))).numpy()
        except (RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:  # a module may fail in any way
            raise ModelError(f"the model does not accept the rows: {one_line(error)}") from error
        values = outputs.size // max(len(outputs), 1)
        if self.preprocessing.targets and len(outputs) and values != self.outputs:
            raise ModelError(f"the model returns {values} values for a row, not {self.outputs}")
        return outputs

    def _features(self, encode: EncodeSettings, rows: Any) -> NDArray[np.float32]:
        encoder = SampleEncoder(encode, self.preprocessing, torch.device("cpu"))
        return encoder.encode([self.preprocessing.transform(rows)])[0]

    @torch.no_grad()
    def _batches(self, x: NDArray[Any]) -> Iterator[Tensor]:
        forward = self.adapted()
        for first in range(0, max(len(x), 1), BATCH):
            yield forward(torch.from_numpy(x[first : first + BATCH])).float()

    def adapted(self) -> nn.Module:
        """The model as it was trained: it takes what `preprocessing.transform` gives, and returns one tensor."""
        inputs = self.preprocessing.inputs
        return AdaptedModel(self.model, inputs, self.output).eval() if inputs or self.output else self.model

    def __repr__(self) -> str:
        scores = "".join(f", {each.metric} {each.value:.4f} {each.measured}" for each in self.info.scores)
        name, model, algorithm = map(one_line, (self.info.name, self.info.model, self.info.algorithm))
        return f"{name}: {model} by {algorithm}, {self.info.rounds} rounds{one_line(scores)}"


def refuse_incomplete(info: ModelInfo) -> None:
    """A model of which each client keeps a part cannot be used without one."""
    if info.private:
        raise ModelError(
            f"{one_line(', '.join(info.private[:3]))[:200]} stay with each client, so there is no one model for all; "
            "use result.personal(client)"
        )


def load_model(
    folder: str | Path, model: Any = None, *, factory: str | None = None, encoder: str | None = None
) -> SavedModel:
    """The model in a folder that `result.save` wrote, or in the folder of a finished run.

    A model by name needs nothing else. If it is your own code, which no folder contains, pass the module or the
    scikit-learn estimator as you built it for the run (it is left as it is), or `factory="file.py:function"`, which
    runs that file. Likewise `encoder` for a frozen encoder of your own.
    """
    path = Path(folder)
    description, preprocessing = read_description(path)
    refuse_incomplete(description.info)
    shape = tuple(description.sample_shape)
    encode = _encoder(path, description, encoder)
    if model is not None and factory is not None:
        raise ConfigError("pass model or factory, not both")
    settings: ModelSettings
    if model is not None:
        module, settings = _own_copy(model, shape, description.outputs, preprocessing), InMemoryModel()
        load_parameters(path, description, module)
    elif factory is not None:
        settings = PythonModel(factory=factory)
        module = settings.build(shape, description.built_outputs)
        load_parameters(path, description, module)
    else:
        module, settings = build_named_model(path, description)
    return SavedModel(
        model=module.eval(),
        preprocessing=preprocessing,
        settings=settings,
        sample_shape=shape,
        outputs=description.outputs,
        built_outputs=description.built_outputs,
        info=description.info,
        output=description.output,
        encode=encode,
        feature_scaling=stored_feature_scaling(path, description),
    )


def _encoder(folder: Path, description: ModelDescription, own: str | None) -> EncodeSettings | None:
    """The encoder that the folder names; its own code is run only if whoever loads the model passes it."""
    settings = stored_encoder(folder, description)
    if own is not None and (settings is None or not settings.own):
        raise ConfigError(f"encoder: the model in {folder} takes no features of an encoder of your own; remove it")
    if settings is None or not settings.own:
        return settings
    if own is None:
        raise ModelError(
            f"{folder} does not contain the code of the encoder '{one_line(settings.name)[:100]}'; pass it: "
            f'encoder="FILE.py:FUNCTION" (--encoder), which runs that file'
        )
    return EncodeSettings(name=own, scale=settings.scale)


def _own_copy(model: Any, shape: tuple[int, ...], outputs: int, preprocessing: Preprocessing) -> nn.Module:
    if isinstance(model, nn.Module):
        return deepcopy(model)
    if is_estimator(model):
        return estimator_model(model, shape, outputs, classification=not preprocessing.targets, seed=0)[0]
    raise ConfigError(f"model: {type(model).__name__} is neither an nn.Module nor a scikit-learn estimator")


def trained_model(
    experiment: Experiment,
    plan: TrainingPlan,
    summary: Summary,
    module: nn.Module,
    preprocessing: Preprocessing,
    sizes: DataSizes,
    made: Provenance,
    feature_scaling: Affine | None,
) -> SavedModel:
    """The best model of a run that has just ended: a copy, as predictions must not depend on what is done to it."""
    if plan.classes is None and not preprocessing.targets:
        targets = tuple(TargetSpec() for _ in range(plan.outputs))
        preprocessing = preprocessing.model_copy(update={"targets": targets})
    module = model_without_heads(module)
    return SavedModel(
        model=deepcopy(own_module(module)).eval(),
        output=module.output if isinstance(module, AdaptedModel) else None,
        preprocessing=preprocessing,
        settings=experiment.model,
        sample_shape=plan.sample_shape,
        outputs=plan.outputs,
        built_outputs=plan.built_outputs,
        info=model_info(experiment, plan, summary, own_module(module), sizes, made),
        encode=experiment.encode and experiment.encode.model_copy(update={"cache": None}),
        feature_scaling=feature_scaling,
    )
