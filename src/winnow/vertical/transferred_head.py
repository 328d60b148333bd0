"""The head as it goes from the owner of the labels to the other one, and how it is checked there."""

from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor, nn

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.data.preprocessing import Label
from winnow.vertical.cut_messages import MAX_BYTES, array_of_bytes

MAX_LABELS = 100_000
MAX_LABEL_LENGTH = 1_000


class HeadMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The head's numbers by name, float32; whether it tells classes, and what these are called if not 0, 1, …"""

    values: dict[str, bytes]
    has_classes: bool
    labels: tuple[str | int | float | bool, ...] | None


def encode_head(state: Mapping[str, Tensor], has_classes: bool, labels: tuple[Label, ...] | None) -> bytes:
    values = {name: value.detach().to(torch.float32).contiguous().numpy().tobytes() for name, value in state.items()}
    return msgspec.msgpack.encode(HeadMessage(values=values, has_classes=has_classes, labels=labels))


def decode_head(message: bytes, head: nn.Module) -> tuple[HeadMessage, dict[str, Tensor]]:
    """The numbers of another owner's head: those that the program's own head has, finite."""
    if len(message) > MAX_BYTES:
        raise UnreadableError(f"the head has {len(message)} bytes; {MAX_BYTES} are the most")
    told = from_msgpack(message, HeadMessage)
    expected = head.state_dict()
    if told.values.keys() != expected.keys():
        raise UnreadableError("the head does not have the parts of the program's head")
    if told.labels is not None and (
        len(told.labels) > MAX_LABELS or any(len(str(label)) > MAX_LABEL_LENGTH for label in told.labels)
    ):
        raise UnreadableError("the labels of the head are too many or too long")
    state = {
        name: array_of_bytes(told.values[name], tuple(value.shape)).to(value.dtype) for name, value in expected.items()
    }
    return told, state
