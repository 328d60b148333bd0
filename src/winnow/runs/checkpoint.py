"""A checkpoint is one safetensors file: the arrays of a snapshot, and everything else as JSON in its header."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from winnow.core import Arrays, RunError, Snapshot
from winnow.runs.codec import plain
from winnow.runs.files import write_atomically

if TYPE_CHECKING:
    import torch

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A snapshot and where the run folder stood when it was taken."""

    snapshot: Snapshot
    round: int
    events_bytes: int
    wall_seconds: float


def save_arrays(path: Path, arrays: Arrays, header: Mapping[str, str]) -> None:
    """Write arrays (torch or NumPy) whole or not at all."""
    _save(path, {name: _tensor(array) for name, array in arrays.items()}, header)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    snapshot = checkpoint.snapshot
    state = {
        "schema": SCHEMA,
        "round": checkpoint.round,
        "events_bytes": checkpoint.events_bytes,
        "wall_seconds": checkpoint.wall_seconds,
        "values": snapshot.values,
        "numpy": sorted(name for name, array in snapshot.arrays.items() if isinstance(array, np.ndarray | np.generic)),
    }
    text = json.dumps(state, default=plain)  # the standard library's, which keeps NaN and infinities
    tensors = {name: _tensor(array) for name, array in snapshot.arrays.items()}
    _save(path, tensors, {"state": text, "digest": _digest(text, tensors)})


def load_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in this file, or a RunError if a single bit of it is not as written."""
    state, tensors = _load(path)
    if state.get("schema") != SCHEMA:
        raise RunError(f"{path} has schema {state.get('schema')}, this version of Winnow reads {SCHEMA}")
    as_numpy = set(state["numpy"])
    arrays = {name: tensor.numpy() if name in as_numpy else tensor for name, tensor in tensors.items()}
    return Checkpoint(
        snapshot=Snapshot(arrays=arrays, values=state["values"]),
        round=state["round"],
        events_bytes=state["events_bytes"],
        wall_seconds=state["wall_seconds"],
    )


def _load(path: Path) -> tuple[dict[str, Any], dict[str, "torch.Tensor"]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
        if header["digest"] == _digest(header["state"], tensors):
            return json.loads(header["state"]), tensors
    except (SafetensorError, KeyError, TypeError, ValueError):
        pass
    raise RunError(f"{path} is damaged; delete it to begin the run again, or choose another --out")


def _save(path: Path, tensors: dict[str, "torch.Tensor"], header: Mapping[str, str]) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=dict(header)))


def _tensor(array: Any) -> "torch.Tensor":
    """A copy of its own in main memory: safetensors refuses views and shared storage."""
    import torch  # noqa: PLC0415 - whoever only reads logs does not wait for it

    if isinstance(array, torch.Tensor):
        return array.detach().to("cpu", copy=True).contiguous()
    return torch.from_numpy(np.array(array, order="C"))


def _digest(text: str, tensors: Mapping[str, "torch.Tensor"]) -> str:
    import torch  # noqa: PLC0415

    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
