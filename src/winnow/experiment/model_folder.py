"""The folder of a trained model: model.json, the parameters as safetensors, and a card. A run folder is one, too.

A folder may come from anybody. Nothing in it is executed, and nothing is believed before it is checked: sizes first,
then types, then names and shapes against the model that is built here, then the digest of the parameters.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta, Struct
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from winnow.core import DataError, ModelError, RunError, Settings
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.core.split_factory_path import own_code_names
from winnow.core.untrusted_text import one_line
from winnow.data import Preprocessing
from winnow.data.preprocessing import Affine
from winnow.experiment.model_card import card_text
from winnow.experiment.model_card_data import MODEL_NAMES_OWN, ModelInfo
from winnow.learn.encoders import EncodeSettings
from winnow.learn.models import ModelSettings, build_model
from winnow.learn.stack import ModelState
from winnow.runs import file_names
from winnow.runs.atomic_write import one_line_errors, write_atomically, write_text_atomically
from winnow.runs.checkpoint import save_arrays

MAX_DESCRIPTION_BYTES = 1 << 26
MAX_SETTINGS_BYTES = 1 << 16
"""What a model's settings take at most: a network cannot have more layers than they can name."""
MAX_PARAMETERS_BYTES = 1 << 35
MAX_SAMPLE = 1 << 31

Size = Annotated[int, Meta(ge=1, le=MAX_SAMPLE)]


class Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which file of the folder holds them, and their digest."""

    file: Literal["model.safetensors", "best.safetensors"]
    digest: str


class ModelDescription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What model.json holds: how the model is built, and how raw rows become its inputs."""

    format: Literal[1]
    model: dict[str, Any]
    output: str | None
    sample_shape: Annotated[list[Size], Meta(max_length=8)]
    outputs: Annotated[int, Meta(ge=1, le=1 << 24)]
    built_outputs: Annotated[int, Meta(ge=1, le=1 << 24)]
    parameters: Parameters
    preprocessing: dict[str, Any]
    info: ModelInfo
    encode: dict[str, Any] | None = None
    """The frozen encoder whose features the model takes, if it does."""
    feature_scaling: dict[str, Any] | None = None
    """By which those features are standardised, if they are."""


class _NamedModel(Settings):
    """What makes a model's settings out of a table."""

    model: ModelSettings


def write_description(
    folder: Path,
    *,
    file: Literal["model.safetensors", "best.safetensors"],
    state: ModelState,
    settings: ModelSettings,
    output: str | None,
    sample_shape: tuple[int, ...],
    outputs: int,
    built_outputs: int,
    preprocessing: Preprocessing,
    info: ModelInfo,
    encode: EncodeSettings | None,
    feature_scaling: Affine | None,
) -> None:
    """Write model.json and the card beside the parameters, which are already there."""
    description = ModelDescription(
        format=1,
        model=_without_paths(settings),
        output=output,
        sample_shape=list(sample_shape),
        outputs=outputs,
        built_outputs=built_outputs,
        parameters=Parameters(file=file, digest=digest_of_state(state)),
        preprocessing=preprocessing.to_json(),
        info=info,
        encode=None if encode is None else _encoder_without_paths(encode),
        feature_scaling=None if feature_scaling is None else feature_scaling.model_dump(mode="json"),
    )
    text = msgspec.json.format(msgspec.json.encode(description), indent=1) + b"\n"
    write_text_atomically(folder / file_names.CARD, card_text(info, preprocessing))
    write_atomically(folder / file_names.MODEL, lambda temporary: temporary.write_bytes(text))


def create_folder(folder: Path, state: ModelState) -> None:
    """A folder for a model, with its parameters in it; one that holds something else is refused."""
    with one_line_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / file_names.LABEL).exists():
            raise RunError(f"{folder} is a run folder; save the model elsewhere")
        if any(folder.iterdir()) and not (folder / file_names.MODEL).is_file():
            raise RunError(f"{folder} is not empty and contains no model; choose another folder")
        save_arrays(folder / file_names.SAVED_PARAMETERS, state, {"format": "pt"})


def read_description(folder: Path) -> tuple[ModelDescription, Preprocessing]:
    """What a folder says of its model, checked as far as it can be without the parameters."""
    if (folder / file_names.LABEL).is_file() and not (folder / file_names.RESULT).is_file():
        raise RunError(f"the run in {folder} is not finished; continue it with --resume")
    description = stored_description(folder)
    if description is None:
        raise RunError(
            f"{folder} contains no model: {file_names.MODEL} is missing; "
            "give a folder that result.save made, or that of a finished run"
        )
    try:
        preprocessing = Preprocessing.from_json(description.preprocessing)
    except (DataError, RecursionError) as error:
        raise _damaged(folder, one_line(error)) from None
    _check_together(folder, description, preprocessing)
    return description, preprocessing


def stored_description(folder: Path) -> ModelDescription | None:
    """What model.json says; None where there is no such file."""
    path = folder / file_names.MODEL
    with one_line_errors(path):
        if not path.is_file():
            return None
        if path.stat().st_size > MAX_DESCRIPTION_BYTES:
            raise RunError(f"{path} is too large for a model's description")
        try:
            return from_json(path.read_bytes(), ModelDescription)
        except UnreadableError as error:
            raise _damaged(folder, str(error)) from None


def load_parameters(folder: Path, description: ModelDescription, module: nn.Module) -> None:
    """Give a user's own module the parameters of a folder."""
    module.load_state_dict(_read_parameters(folder, description, module.state_dict()))


def build_named_model(folder: Path, description: ModelDescription) -> tuple[nn.Module, ModelSettings]:
    """The model that a folder describes by name, with its parameters."""
    settings = _named_settings(folder, description)
    shape = tuple(description.sample_shape)
    try:
        with torch.device("meta"):  # shapes without memory: whoever wrote the file chose the sizes
            expected = build_model(settings, shape, description.built_outputs, seed=0)
    except (ModelError, RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise RunError(f"{folder / file_names.MODEL}: this model cannot be built: {one_line(error)}") from None
    state = _read_parameters(folder, description, expected.state_dict())
    module = build_model(settings, shape, description.built_outputs, seed=0)
    module.load_state_dict(state)
    return module, settings


def digest_of_state(state: Mapping[str, Tensor]) -> str:
    """Of names, types, shapes and values, in whichever order a file has them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _without_paths(settings: ModelSettings) -> dict[str, Any]:
    """How the model is built; of a user's own file the name alone, not where it lies on this machine."""
    table = settings.model_dump(mode="json", exclude_none=True)
    for _, key, name in own_code_names({"model": table}):
        table[key] = Path(name).name
    return table


def _encoder_without_paths(settings: EncodeSettings) -> dict[str, Any]:
    name = Path(settings.name).name if settings.own else settings.name
    return {**settings.model_dump(mode="json", exclude={"cache"}), "name": name}


def stored_encoder(folder: Path, description: ModelDescription) -> EncodeSettings | None:
    """The encoder that a folder names; where it caches is not for a folder to say."""
    if description.encode is None:
        return None
    try:
        return EncodeSettings.model_validate({**description.encode, "cache": None})
    except (ValidationError, RecursionError) as error:
        raise _damaged(folder, _reason(error)) from None


def stored_feature_scaling(folder: Path, description: ModelDescription) -> Affine | None:
    """Means and deviations of a folder, one of each a feature."""
    if description.feature_scaling is None:
        return None
    try:
        scaling = Affine.model_validate(description.feature_scaling)
    except (ValidationError, RecursionError) as error:
        raise _damaged(folder, _reason(error)) from None
    if description.encode is None or description.encode.get("scale") != "standard":
        raise _damaged(
            folder, "it holds means and deviations of features, and the model takes none that are standardised"
        )
    if (len(scaling.shift),) != tuple(description.sample_shape):
        raise _damaged(
            folder, f"{len(scaling.shift)} features are standardised, the model takes {description.sample_shape}"
        )
    with np.errstate(over="ignore"):
        shift, width = np.asarray(scaling.shift, np.float32), np.asarray(scaling.width, np.float32)
    if not (np.isfinite(shift).all() and np.isfinite(width).all() and (width > 0).all()):
        raise _damaged(folder, "a mean or deviation is too large or too small for features, which are 32-bit numbers")
    return scaling


def _check_together(folder: Path, description: ModelDescription, preprocessing: Preprocessing) -> None:
    shape, outputs = tuple(description.sample_shape), description.outputs
    wrong = None
    if math.prod(shape) > MAX_SAMPLE:  # not torch's, which overflows
        wrong = "a sample is too large"
    elif description.encode is None and (unfit := _unfit_rows(shape, preprocessing)):
        wrong = unfit
    elif preprocessing.classes is not None and outputs != len(preprocessing.classes):
        wrong = f"there are {len(preprocessing.classes)} classes and {outputs} outputs"
    elif description.built_outputs not in (outputs, 1 if outputs == 2 else outputs):
        wrong = f"a model for {outputs} classes or values has {description.built_outputs} outputs"
    elif preprocessing.targets and outputs != len(preprocessing.targets):
        wrong = f"there are {len(preprocessing.targets)} targets and {outputs} outputs"
    if wrong is not None:
        raise _damaged(folder, wrong)


def _unfit_rows(shape: tuple[int, ...], preprocessing: Preprocessing) -> str | None:
    """Why rows do not become samples of this shape; None where they do."""
    if preprocessing.columns and shape != (len(preprocessing.features),):
        return f"the columns make {len(preprocessing.features)} features, the model takes {shape}"
    if preprocessing.inputs and shape != (sum(spec.size for spec in preprocessing.inputs),):
        return f"the inputs do not make samples of shape {shape}"
    if preprocessing.array is not None and shape != preprocessing.array.shape:
        return f"the rows have shape {preprocessing.array.shape}, the model takes {shape}"
    return None


def _reason(error: ValidationError | RecursionError) -> str:
    """Without what was given, which a stranger chose."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return one_line(error.errors(include_url=False, include_input=False)[0]["msg"])


def _damaged(folder: Path, why: str) -> RunError:
    return RunError(f"{folder / file_names.MODEL} is damaged, or not Winnow's: {why}")


def _named_settings(folder: Path, description: ModelDescription) -> ModelSettings:
    name, where = description.model.get("name"), folder / file_names.MODEL
    if name in MODEL_NAMES_OWN or any(own_code_names({"model": description.model})):
        factory = one_line(description.model.get("factory") or "FILE.py:FUNCTION")[:200]
        raise ModelError(
            f"{folder} does not contain the code of the model, {one_line(description.info.model)[:100]}; "
            f'pass it: model=…, or factory="{factory}" (--factory), which runs that file'
        )
    try:
        if len(msgspec.json.encode(description.model)) > MAX_SETTINGS_BYTES:
            raise RunError(f"{where}: the model's settings are too large")
        settings: ModelSettings = _NamedModel.model_validate({"model": description.model}).model
    except (ValidationError, RecursionError) as error:
        named = one_line(name)[:50] if isinstance(name, str) else ""
        raise RunError(f"{where}: no model {named!r} with these settings: {_reason(error)}; pass model=…") from None
    return settings


def _read_parameters(folder: Path, description: ModelDescription, expected: Mapping[str, Tensor]) -> ModelState:
    """The parameters of the file, which must be those of this model, and those that were saved."""
    path = folder / description.parameters.file
    if not path.is_file():
        raise RunError(f"{folder} is not complete: {path.name} is missing")
    if path.stat().st_size > MAX_PARAMETERS_BYTES:
        raise RunError(f"{path} is larger than {MAX_PARAMETERS_BYTES >> 30} GiB")
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            _check_layout(path, shapes, {name: tuple(tensor.shape) for name, tensor in expected.items()})
            state = {name: file.get_tensor(name) for name in expected}
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged: {one_line(error)}") from None
    for name, tensor in expected.items():
        if state[name].dtype != tensor.dtype:
            raise ModelError(f"{path}: {name} is {state[name].dtype}, and {tensor.dtype} in the model")
    if digest_of_state(state) != description.parameters.digest:
        raise RunError(f"{path} is damaged: its contents have changed since it was saved")
    return state


def _check_layout(path: Path, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name in (*expected, *found):
        if name not in found:
            raise ModelError(f"{path} does not fit this model: it has no {one_line(name)[:100]}")
        if name not in expected:
            raise ModelError(f"{path} does not fit this model, which has no {one_line(name)[:100]}")
        if found[name] != expected[name]:
            shapes = f"{found[name]} there, and {expected[name]} here"
            raise ModelError(f"{path} does not fit this model: {one_line(name)[:100]} is {shapes}")
