"""A program in progress: its present step, what was opened so far, and in the end its answer."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from winnow.analytics.program import Mix, Opened, PartyProtocol, Program, Step, SumChain, opened_length, opens_bits
from winnow.core import WinnowError

T = TypeVar("T")
NUMBER_BYTES = 16
"""Of a number that a sum opens, on its way and at rest."""
CHAIN_NUMBER_BYTES = 8


class ProgramRun(Generic[T]):
    """Runs a program as far as there are results for its steps."""

    def __init__(self, program: Program[T], owners: int, opened: Sequence[bytes] = ()) -> None:
        self._program, self._owners = program, owners
        self.opened: list[bytes] = []
        """What each step opened, as it is kept."""
        self.step: Step | None = None
        self.answer: T | None = None
        self._go_on(None)
        for each in opened:
            self.add(each)

    @property
    def number(self) -> int:
        """Of the present step, from 1 on."""
        return len(self.opened) + 1

    def add(self, opened: bytes) -> None:
        """What the present step opened."""
        if self.step is None:
            raise WinnowError("the program has no further step")
        values, label = decode_opened(self.step, self._owners, opened), self.step.label
        self.opened.append(opened)
        try:
            self._go_on(values)
        except (ArithmeticError, LookupError, MemoryError, ValueError) as error:
            raise WinnowError(
                f"step {label!r} opened numbers that no rows give: an owner lied, or this is a fault of Winnow"
            ) from error

    def _go_on(self, values: Opened | None) -> None:
        """To the next step that opens anything: one without entries needs no party."""
        try:
            self.step = next(self._program) if values is None else self._program.send(values)
            while opened_length(self.step, self._owners) == 0:
                self.step = self._program.send(decode_opened(self.step, self._owners, b""))
        except StopIteration as stop:
            self.step, self.answer = None, stop.value


def encode_opened(opened: Opened) -> bytes:
    """Its length depends on how many entries there are, not on their values."""
    if opened.dtype in (bool, np.uint8):
        return opened.tobytes()
    if opened.dtype == np.int64:
        return opened.astype("<i8", copy=False).tobytes()
    return b"".join(int(value).to_bytes(NUMBER_BYTES, "little", signed=True) for value in opened)


def decode_opened(step: Step, owners: int, data: bytes) -> Opened:
    width, length = _width(step), opened_length(step, owners)
    if len(data) != width * length:
        raise WinnowError(f"the result of step {step.label!r} has {len(data)} bytes; {width * length} were expected")
    if isinstance(step, Mix):
        return np.frombuffer(data, np.uint8)
    if isinstance(step, SumChain | PartyProtocol):
        return np.frombuffer(data, "<i8").astype(np.int64)
    if not opens_bits(step):
        numbers: list[Any] = [
            int.from_bytes(data[i : i + width], "little", signed=True) for i in range(0, len(data), width)
        ]
        return np.array(numbers, dtype=object)
    told = np.frombuffer(data, np.uint8)
    if np.any(told > 1):
        raise WinnowError(f"the result of step {step.label!r} has something else than 0 and 1")
    return told.astype(bool)


def _width(step: Step) -> int:
    """Bytes of an entry."""
    if opens_bits(step) or isinstance(step, Mix):
        return 1
    return CHAIN_NUMBER_BYTES if isinstance(step, SumChain | PartyProtocol) else NUMBER_BYTES
