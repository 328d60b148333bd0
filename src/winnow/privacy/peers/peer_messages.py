"""What peers write to each other: a box with a trained model, a message with its key, and a statement of what was
averaged.

A box is encrypted once, under a key of its own, and goes through the server's hands as any update does. In a deployed
job a site seals messages and statements for their readers, signed, for this job, round and pair of clients. What is
inside comes from another party all the same, and is checked against the reader's own model.
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated

import msgspec
import numpy as np
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Meta

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.learn.reply_checks import is_bounded
from winnow.learn.stack import ModelState

DIGEST_BYTES, KEY_BYTES, TAG_BYTES = 32, 32, 16
NONCE = bytes(12)
"""A key encrypts one box, so no two have the same key and nonce."""
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
MAX_SAMPLES = 1 << 40


class ModelMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What opens a client's box, and what the model in it is: its tensors in the order of their names."""

    start: Digest
    """Of the model from which training started."""
    version: Annotated[int, Meta(ge=0)]
    """The round that made that model; 0 is the initial one."""
    samples: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]
    key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    box: Digest
    """Of the box, so that all readers of a message mean the same one."""


class AverageStatement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages a client had, by their senders, and what they came to."""

    messages: dict[int, Digest]
    average: Digest


def tensor_bytes(model: ModelState) -> bytes:
    return b"".join(model[name].detach().cpu().contiguous().reshape(-1).numpy().tobytes() for name in sorted(model))


def _read_model(values: bytes, like: ModelState) -> ModelState:
    """The model of a message: of the names, shapes and types of one's own, or none at all."""
    if len(values) != sum(tensor.nbytes for tensor in like.values()):
        raise UnreadableError("the message's model has another size than ours")
    found, at = {}, 0
    for name in sorted(like):
        own = like[name]
        flat = np.frombuffer(values, np.uint8, own.nbytes, at).copy()
        found[name] = torch.from_numpy(flat).view(own.dtype).reshape(own.shape).to(own.device)
        at += own.nbytes
    if not is_bounded(found):
        raise UnreadableError("the message's model has values that are not finite or too large")
    return found


def tensors_digest(model: ModelState) -> bytes:
    return sha256(tensor_bytes(model)).digest()


def encrypt_model(trained: ModelState, start: ModelState, version: int, samples: int) -> tuple[bytes, bytes]:
    """The box with a trained model, and the message that opens it."""
    key = os.urandom(KEY_BYTES)
    box = AESGCM(key).encrypt(NONCE, tensor_bytes(trained), None)
    message = ModelMessage(
        start=tensors_digest(start), version=version, samples=samples, key=key, box=sha256(box).digest()
    )
    return box, msgspec.msgpack.encode(message)


def encrypted_model_bytes(like: ModelState) -> int:
    return sum(tensor.nbytes for tensor in like.values()) + TAG_BYTES


def decrypt_model(text: bytes, box: bytes, like: ModelState) -> tuple[ModelMessage, ModelState]:
    message = from_msgpack(text, ModelMessage)
    if sha256(box).digest() != message.box:
        raise UnreadableError("the box is not the one that the message is about")
    try:
        values = AESGCM(message.key).decrypt(NONCE, box, None)
    except InvalidTag as error:
        raise UnreadableError("the message's key does not open its box") from error
    return message, _read_model(values, like)


def encode_statement(messages: Mapping[int, bytes], average: ModelState) -> bytes:
    digests = {sender: sha256(message).digest() for sender, message in sorted(messages.items())}
    return msgspec.msgpack.encode(AverageStatement(messages=digests, average=tensors_digest(average)))


def decode_statement(data: bytes) -> AverageStatement:
    return from_msgpack(data, AverageStatement)


def disagreement(own: AverageStatement, others: Mapping[int, AverageStatement]) -> str | None:
    """Why one must not go on with the average; None if all who wrote messages state the same.

    `others` are by client. A message that was lost on its way, or one that says different things to different readers,
    would leave peers with different models.
    """
    for client, stated in sorted(others.items()):
        for sender in sorted(own.messages.keys() | stated.messages.keys()):
            mine, theirs = own.messages.get(sender), stated.messages.get(sender)
            if mine is None or theirs is None:
                return f"the message of client {sender} reached only one of us and client {client}"
            if mine != theirs:
                return f"client {sender} wrote one thing to us and another to client {client}"
        if own.average != stated.average:
            return f"client {client} comes to another average of the same messages"
    return None
