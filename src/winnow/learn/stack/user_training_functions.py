"""Training as a user wrote it: `step(model, batch) -> loss`, or `train(model, batches, context)`, a client's round."""

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from types import CellType
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from winnow.core import ConfigError, ModelError, OwnCodeError, WinnowError
from winnow.core.errors import first_line
from winnow.learn.adapted_model import ModelInputs, model_inputs, own_module
from winnow.learn.stack.flat_client_data import Indices, TensorData


class OwnBatch(NamedTuple):
    """Samples of one client: `x` as the model takes it (a tensor, a tuple or a dict of tensors), and the targets."""

    x: ModelInputs
    y: Tensor


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """What a loop of one's own may want to know."""

    round: int
    rate: float
    """The learning rate that `local` has in this round."""
    client: int
    device: torch.device


class OwnBatches:
    """A client's batches of all local epochs, in an order that follows from the seed; each pass gives the same."""

    def __init__(self, module: nn.Module, data: TensorData, rows: Indices, sizes: Indices) -> None:
        self._module, self._data = module, data
        self._rows = [torch.from_numpy(own[:size]) for own, size in zip(rows, sizes, strict=True) if size]
        self.taken = 0
        """How many were given out."""

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[OwnBatch]:
        for rows in self._rows:
            x, y = self._data.samples(rows.to(self._data.device))
            self.taken += 1
            yield OwnBatch(model_inputs(self._module, x), y)


StepFunction: TypeAlias = Callable[[nn.Module, OwnBatch], Tensor]
TrainFunction: TypeAlias = Callable[[nn.Module, OwnBatches, TrainContext], Mapping[str, float] | None]


@dataclass(frozen=True)
class OwnStep:
    """`step(model, batch) -> loss`, one number; the optimiser and its batches are those of `local`."""

    function: StepFunction
    keyword: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        _check_arguments(self, "model, batch")

    def loss(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The loss of one client's batch."""
        try:
            loss = self.function(own_module(module), OwnBatch(model_inputs(module, x), y))
        except Exception as error:  # a user's code may fail in any way
            raise own_code_error(self, error) from error
        if not isinstance(loss, Tensor):
            raise ModelError(f"{place_of(self)} returned {type(loss).__name__}; it must return the loss, a tensor")
        if loss.numel() != 1:
            shape = tuple(loss.shape)
            raise ModelError(f"{place_of(self)} returned shape {shape}; it must return one number, such as a mean")
        if not loss.requires_grad:
            raise ModelError(
                f"{place_of(self)} returned a loss that does not depend on the model's parameters; "
                "compute it from model(batch.x), without .item() or .detach()"
            )
        return loss.reshape(())

    def gradients(self, loss: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
        try:
            return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        except RuntimeError as error:
            why = first_line(error).split(" (")[0]
            raise ModelError(f"{place_of(self)}: {why}; return the loss and leave backward() to Winnow") from error

    def check(self, module: nn.Module, x: Tensor, y: Tensor) -> None:
        """Try it on a few samples, so that a mistake is told before the run. Zeros may well have no finite loss."""
        devices = [] if x.device.type == "cpu" else [x.device]
        with torch.random.fork_rng(devices, device_type=x.device.type), torch.enable_grad():
            loss = self.loss(module.train(), x, y)
            self.gradients(loss, [parameter for parameter in module.parameters() if parameter.requires_grad])
        real = x.any() and x.isfinite().all()
        if real and not loss.isfinite():
            raise ModelError(f"{place_of(self)} returned a loss of {loss.item()} for the first {len(y)} samples")


@dataclass(frozen=True)
class OwnLoop:
    """`train(model, batches, context)`, which trains the model in place; it may return {"loss": …}."""

    function: TrainFunction
    keyword: ClassVar[str] = "train"
    notice: str = "clients train by train=, one after another"

    def __post_init__(self) -> None:
        _check_arguments(self, "model, batches, context")

    def run(self, module: nn.Module, batches: OwnBatches, context: TrainContext) -> float:
        """Train a client's model; the loss to report, NaN if none was returned."""
        try:
            with torch.enable_grad():
                found = self.function(own_module(module), batches, context)
        except Exception as error:  # a user's code may fail in any way
            raise own_code_error(self, error) from error
        if found is None:
            return math.nan
        if not isinstance(found, Mapping) or set(found) - {"loss"}:
            told = ", ".join(map(repr, found)) if isinstance(found, Mapping) else type(found).__name__
            raise ModelError(f'{place_of(self)} returned {told}; it may return {{"loss": number}} or nothing')
        try:
            return float(found.get("loss", math.nan))
        except (TypeError, ValueError, RuntimeError):
            raise ModelError(f"{place_of(self)} returned a loss that is not a number") from None


OwnTraining: TypeAlias = OwnStep | OwnLoop


def own_code_error(own: OwnTraining, error: Exception) -> WinnowError:
    """An error in a user's function as one line with its place there."""
    if isinstance(error, WinnowError):
        return error
    file, frames = _code(own.function).co_filename, traceback.extract_tb(error.__traceback__)
    at = next((frame for frame in reversed(frames) if frame.filename == file), frames[-1])
    place = f"{own.keyword} ({Path(at.filename).name}, line {at.lineno}): {type(error).__name__}"
    return OwnCodeError(place, first_line(error))


def place_of(own: OwnTraining) -> str:
    """Where the function is: `step (mine.py, line 3)`."""
    code = _code(own.function)
    return f"{own.keyword} ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def source_of(function: Any) -> bytes:
    """What tells a function, with the plain values bound to it, from another one: a run is continued with the one that
    it started with.
    """
    return "\n".join(_sources(function, set())).encode()


def _sources(function: Any, seen: set[int]) -> Iterator[str]:
    """The source of a function, of what it is bound to by `partial`, by closures and by defaults, and of what it wraps.
    Lists and dicts in closures are left out: they may be where a function notes what it sees.
    """
    if id(function) in seen:  # it refers to itself
        return
    seen.add(id(function))
    if isinstance(function, partial):
        yield from _sources(function.func, seen)
        yield from _bound({**dict(enumerate(function.args)), **function.keywords}, (list, dict), seen)
        return
    yield _source(function)
    if is_dataclass(function):
        yield repr(function)
    inner = getattr(function, "__func__", function)  # of a method
    if inspect.isfunction(inner):
        yield from _bound(dict(enumerate(inner.__defaults__ or ())) | (inner.__kwdefaults__ or {}), (list, dict), seen)
        cells = zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True)
        yield from _bound({name: cell.cell_contents for name, cell in cells if cell != CellType()}, (), seen)


def _bound(values: Mapping[Any, Any], also: tuple[type, ...], seen: set[int]) -> Iterator[str]:
    for name, value in values.items():
        if inspect.isroutine(value) or isinstance(value, partial):
            yield from _sources(value, seen)
        elif _is_plain(value, also):
            yield f"{name}={value!r}"


def _is_plain(value: Any, also: tuple[type, ...]) -> bool:
    """Whether its text says all of a value, in every process."""
    if isinstance(value, dict) and dict in also:
        return all(_is_plain(each, also) for each in (*value, *value.values()))
    if isinstance(value, tuple) or (isinstance(value, list) and list in also):
        return all(_is_plain(each, also) for each in value)
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic)


def _source(function: Any) -> str:
    """The text of its code; its name if it is not written in Python."""
    code = getattr(getattr(function, "__func__", function), "__code__", None) or _code(function)
    if code is None:
        return str(getattr(function, "__qualname__", type(function).__qualname__))
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):  # typed into an interpreter
        return bytes(code.co_code).hex() + repr([each for each in code.co_consts if not inspect.iscode(each)])


def _code(function: Any) -> Any:
    """The code of a function, of a method, or of an object that can be called; None if it is not written in Python."""
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    function = inspect.unwrap(function)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def _check_arguments(own: OwnTraining, arguments: str) -> None:
    function, keyword = own.function, own.keyword
    if not callable(function) or _code(function) is None:
        raise ConfigError(f"{keyword}: {type(function).__name__} is not a function; pass def {keyword}({arguments})")
    try:
        inspect.signature(function).bind(*arguments.split(", "))
    except TypeError:
        raise ConfigError(f"{place_of(own)} must take {arguments}: def {keyword}({arguments})") from None
