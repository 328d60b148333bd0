"""A checkpoint is one safetensors file: the arrays of a snapshot, and everything else as JSON in its header."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from winnow.core import Arrays, RunError, Snapshot
from winnow.runs.atomic_write import write_atomically
from winnow.runs.digests import digest_of
from winnow.runs.event_log import json_default

if TYPE_CHECKING:
    import torch

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """Where the run folder stood when a checkpoint was taken, and the digests of what it held."""

    round: int
    events_bytes: int
    wall_seconds: float
    events_blocks: Sequence[str] = ()
    """Digests of the event log's blocks; none in checkpoints of earlier versions."""
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By file, the digests that it may have: two while a configuration is being exchanged for a longer one."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(CheckpointInfo):
    """A snapshot and what it covers."""

    snapshot: Snapshot


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
        "events_blocks": checkpoint.events_blocks,
        "files": checkpoint.files,
        "values": snapshot.values,
        "numpy": sorted(name for name, array in snapshot.arrays.items() if isinstance(array, np.ndarray | np.generic)),
    }
    text = json.dumps(state, default=json_default)  # the standard library's, which keeps NaN and infinities
    tensors = {name: _tensor(array) for name, array in snapshot.arrays.items()}
    _save(path, tensors, {"state": text, "state_digest": digest_of(text.encode()), "digest": _digest(text, tensors)})


def load_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in this file, or a RunError if a single bit of it is not as written."""
    state, tensors = _load(path)
    as_numpy = set(state["numpy"])
    arrays = {name: tensor.numpy() if name in as_numpy else tensor for name, tensor in tensors.items()}
    return Checkpoint(snapshot=Snapshot(arrays=arrays, values=state["values"]), **_covered(path, state))


def load_checkpoint_info(path: Path) -> CheckpointInfo:
    """What the checkpoint covers. Its arrays are not looked at: whoever reads a run does not need them."""
    with _report_damage(path):
        with safe_open(path, framework="np") as file:
            header = file.metadata()
        text = header["state"]
        if header.get("state_digest", digest_of(text.encode())) == digest_of(text.encode()):
            return CheckpointInfo(**_covered(path, json.loads(text)))
    raise _damaged(path)


def _covered(path: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    if state.get("schema") != SCHEMA:
        raise RunError(f"{path} has schema {state.get('schema')}, this version of Winnow reads {SCHEMA}")
    return {entry.name: state[entry.name] for entry in fields(CheckpointInfo) if entry.name in state}


def _load(path: Path) -> tuple[dict[str, Any], dict[str, "torch.Tensor"]]:
    with _report_damage(path):
        with safe_open(path, framework="pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (the file is no mapping)
        if header["digest"] == _digest(header["state"], tensors):
            return json.loads(header["state"]), tensors
    raise _damaged(path)


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, KeyError, TypeError, ValueError):
        raise _damaged(path) from None


def _damaged(path: Path) -> RunError:
    return RunError(f"{path} is damaged; delete it to restart the run, or choose another --out")


def _save(path: Path, tensors: dict[str, "torch.Tensor"], header: Mapping[str, str]) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415

    try:
        write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=dict(header)))
    except SafetensorError as error:  # its own words for what the file system refuses
        raise RunError(f"cannot write {path}: {str(error).rpartition('I/O error: ')[2]}") from None


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
        if tensor.numel():  # one without elements cannot be viewed as bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
