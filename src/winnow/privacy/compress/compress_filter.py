"""Compressed updates, for a server that may see them: fewer changes, in fewer bits, in as few bytes as that takes."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from msgspec.structs import replace
from pydantic import Field

from winnow.core import Arrays, Failure, Filter, Handler, Outcome, Randomness, Reply, Task
from winnow.core.array_spec import is_byte_array
from winnow.learn.algorithm_part import DataSummary
from winnow.learn.collect import PlainCollect
from winnow.learn.update_filters import MessageEstimate, TwoSidedFilter, task_generator
from winnow.privacy.compress.errors import PacketError
from winnow.privacy.compress.packet import PacketFormat
from winnow.privacy.compress.quantise import Float32, Quantiser
from winnow.privacy.compress.sparsify import KeepAll, Sparsifier
from winnow.privacy.compress.zstandard_coding import library
from winnow.privacy.filters.update_vector import (
    UpdateVector,
    finite_or_zero,
    flatten,
    ordered_like,
    unflatten,
    update_parts,
)

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm

PACKET = "packet"
"""The name of the one array that a compressed part consists of."""

ERROR_FEEDBACK = "feedback"
"""Under this name a client keeps what it has not sent yet."""


class Compress(TwoSidedFilter):
    """Keep some changes, write them in few bits, code what remains: always in this order.

    What a client does not send is fed back into its next update, if `sparsify` says so. It is kept once the reply has
    been folded, so a straggler whose reply was cancelled loses nothing.
    """

    name: Literal["compress"] = "compress"
    packs: ClassVar[bool] = True
    sparsify: Sparsifier = KeepAll()
    quantise: Quantiser = Float32()
    entropy_coding: Literal["none", "zstd"] = "none"
    zstd_level: int = Field(default=3, ge=1, le=19)

    @cached_property
    def format(self) -> PacketFormat:
        return PacketFormat(
            sparsify=self.sparsify,
            quantise=self.quantise,
            level=self.zstd_level if self.entropy_coding == "zstd" else None,
        )

    def at_site(self, randomness: Randomness) -> Filter[Any]:
        def apply(tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
            return [self._packed(each, randomness) for each in call_next(tasks, site)]

        return apply

    def arriving(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Reply):
            return outcome
        payload = dict(outcome.payload)
        try:
            for part in update_parts(outcome, outcome.task):
                payload[part] = self._unpacked(part, payload[part], outcome.task.payload[part])
        except PacketError as error:
            return Failure(task=outcome.task, stage="sending its update", reason=f"invalid packet: {error}")
        return replace(outcome, payload=payload)

    def shrunk(self, message: MessageEstimate) -> MessageEstimate:
        nbytes = self.format.nbytes(message.tells, message.whole)
        return MessageEstimate(whole=message.whole, tells=message.tells, nbytes=nbytes)

    def check_data(self, data: DataSummary) -> None:
        if self.entropy_coding == "zstd":
            library()

    def conflict(self, whole: "Algorithm") -> str | None:
        if not isinstance(whole.collect, PlainCollect):
            collect = getattr(whole.collect, "name", "")
            return (
                f"filters: compress sends packets, which cannot be summed: collect.name = {collect!r} has compression "
                'of its own; leave the filter out, or write collect.name = "plain"'
            )
        return None

    def privacy_text(self) -> str:
        coded = ", coded by zstandard" if self.entropy_coding == "zstd" else ""
        fed_back = " What was not sent stays at the client and is added to its next update." * self.sparsify.feeds_back
        return (
            f"compress: the server sees {self.sparsify.privacy_text()}, {self.quantise.privacy_text()}{coded}. This "
            f"saves bytes and protects nobody: what arrives is each client's own update, which the server "
            f"reads.{fed_back}"
        )

    def _packed(self, outcome: Outcome, randomness: Randomness) -> Outcome:
        if not isinstance(outcome, Reply):
            return outcome
        payload, new_state, task = dict(outcome.payload), dict(outcome.new_client_state), outcome.task
        unsent: dict[str, torch.Tensor] = {}
        for part in update_parts(outcome, task):
            sent = task.payload[part]
            changes = finite_or_zero(flatten(part, payload[part], sent)) + _fed_back(task, part)
            rng = task_generator(randomness, task, f"compress/{part}")
            sealed = self.format.write(changes, payload[part], sent, rng)
            payload[part] = {PACKET: sealed.data}
            unsent[part] = torch.from_numpy(np.where(sealed.sent, np.float32(0), changes))
        if self.sparsify.feeds_back:
            new_state[ERROR_FEEDBACK] = unsent
        return replace(outcome, payload=payload, new_client_state=new_state)

    def _unpacked(self, part: str, arrays: Arrays, sent: Arrays) -> Arrays:
        if arrays.keys() != {PACKET} or not is_byte_array(arrays, PACKET, self.format.nbytes(sent, sent)):
            raise PacketError("the update is not compressed as requested")
        changes, buffers = self.format.read(np.asarray(arrays[PACKET]), sent)
        return ordered_like({**buffers, **unflatten(part, changes, sent)}, sent)


def _fed_back(task: Task, part: str) -> UpdateVector | np.float32:
    """What the client has not sent yet."""
    kept = task.client_state.get(ERROR_FEEDBACK, {})
    if part not in kept:
        return np.float32(0)
    vector: UpdateVector = kept[part].cpu().numpy()
    return vector
