"""The protocol's steps as tasks: their names, what they carry, and bytes as arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from winnow.core import Failure, Handler, Outcome, Payload, Reply, Task
from winnow.core.array_spec import is_byte_array
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.session_inputs import SessionInputs
from winnow.privacy.secagg.update_encoding_interface import EncodingParameters

ADVERTISE_KEYS = "secure-advertise-keys"
CLOSE_SESSION = "secure-close-session"
SHARE_KEYS = "secure-share-keys"
MASKED_INPUT = "secure-masked-input"
CONSISTENCY_CHECK = "secure-consistency-check"
UNMASK = "secure-unmask"
DEPOSIT_SEED = "secure-deposit-seed"

UPDATE_LAYOUT = "held"
"""The part of a training reply that describes the update; the update itself stays at the site."""
SECURE = "secure"
ENCODING = "encoding"

MAX_MESSAGE_BYTES = 1 << 24
"""The most bytes that a message other than a vector may have; longer ones are not read."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The session that a step belongs to."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    """Session ids are random bytes, which are not valid UTF-8."""

    session: bytes


def session_of(task: Task) -> bytes:
    if not isinstance(task.settings, StepSettings):
        raise ProtocolError("the task has no valid session id")
    return task.settings.session


def as_array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def payload_bytes(payload: Payload, name: str, part: str = SECURE, most: int = MAX_MESSAGE_BYTES) -> bytes:
    """The bytes of this name; a message without them, or with more than `most`, is refused."""
    if not isinstance(payload, Mapping) or not is_byte_array(payload.get(part, {}), name, most):
        raise ProtocolError(f"the message has no valid {name}")
    return np.asarray(payload[part][name]).tobytes()


def session_inputs_payload(inputs: SessionInputs) -> Payload:
    """The session inputs as a task's payload."""
    return {SECURE: {"members": inputs.members, "weights": inputs.weights}, ENCODING: inputs.parameters.as_arrays()}


def read_session_inputs(payload: Payload) -> SessionInputs:
    return SessionInputs(
        members=read_vector(payload, "members").astype(np.int64),
        weights=read_vector(payload, "weights"),
        parameters=EncodingParameters.of(payload.get(ENCODING, {})),
    )


def read_vector(payload: Payload, name: str) -> NDArray[np.float64]:
    array = np.asarray(payload.get(SECURE, {}).get(name, ()))
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "if" or not np.isfinite(array).all():
        raise ProtocolError(f"the message has no valid {name}")
    return array.astype(np.float64)


def reply_with(task: Task, **data: bytes) -> Reply:
    return Reply(task=task, payload={SECURE: {name: as_array(each) for name, each in data.items()}})


def step_handler(step: Callable[[Task], Reply]) -> Handler[Any]:
    """A handler that runs the step for one client at a time; a refusal becomes a failure with its reason."""

    def answer(task: Task) -> Outcome:
        try:
            return step(task)
        except ProtocolError as error:
            return Failure(task=task, stage=f"answering {task.name}", reason=str(error))

    return lambda tasks, site: [answer(task) for task in tasks]
