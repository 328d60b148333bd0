"""SecureComparison in shares, by MPyC: nothing of two numbers becomes known but which is larger.

MPyC's `np_sgn` (after Toft) takes as many exchanges of messages as there are levels of a tree over the bits, and a few.
"""

from argparse import Namespace
from asyncio import Future
from collections.abc import Mapping, Sequence
from itertools import combinations
from secrets import token_bytes
from typing import Any

import numpy as np

from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.field_elements import Values
from winnow.privacy.shares.mpyc_event_loop import MpycEventLoop
from winnow.privacy.shares.mpyc_library import mpyc, working_for
from winnow.privacy.shares.shamir_shares import field_of, threshold_of
from winnow.privacy.shares.step_messages import MpycMessage

SECURITY_BITS = 40
"""What is opened on the way is hidden by noise so many bits wider: it says something with probability 2⁻⁴⁰."""
KEY_BYTES = 16
BATCH = 1_000
"""Entries that are compared at a time, so that a message stays below a megabyte."""


def batches(length: int) -> int:
    return -(-length // BATCH)


def difference_bits(bits: int) -> int:
    """Two numbers below 2**bits in size differ by a signed number of so many bits."""
    return bits + 2


def comparison_field(bits: int) -> Any:
    """A field with room for a difference and what hides it; twice the security's width spares an exchange."""
    return field_of(max(difference_bits(bits) + SECURITY_BITS + 2, 2 * SECURITY_BITS))


def own_keys(me: int, parties: int) -> dict[tuple[int, ...], bytes]:
    """Fresh keys of pseudorandom shares, for each set of m − t parties of which this one is the first
    (Cramer, Damgård and Ishai, 2005).
    """
    return {group: token_bytes(KEY_BYTES) for group in _groups(parties) if group[0] == me}


def keys_between(sender: int, receiver: int, parties: int) -> list[tuple[int, ...]]:
    """The groups whose keys the sender tells the receiver."""
    return [group for group in _groups(parties) if group[0] == sender and receiver in group and receiver != sender]


def _groups(parties: int) -> Sequence[tuple[int, ...]]:
    return list(combinations(range(parties), parties - threshold_of(parties)))


class SecureComparison:
    """One party's part in finding, entry by entry, whether shared differences are at least 0."""

    def __init__(
        self, *, me: int, parties: int, bits: int, keys: Mapping[tuple[int, ...], bytes], difference: Values
    ) -> None:
        """`difference` are this party's shares."""
        self._field = comparison_field(bits)
        self._loop = MpycEventLoop()
        threshold = threshold_of(parties)
        options = Namespace(
            threshold=threshold,
            sec_param=SECURITY_BITS,
            bit_length=difference_bits(bits),
            no_prss=False,
            no_async=False,
            no_log=True,
            no_barrier=True,
            mix32_64bit=False,
        )
        runtime_module = mpyc()
        self._places = [runtime_module.Party(number) for number in range(parties)]
        with self._loop.running():
            self._runtime = runtime_module.Runtime(me, self._places, options)
        self._runtime._prss_keys = {group: key for group, key in keys.items() if me in group}
        for place in self._places:
            place.protocol = _Mailbox(self._loop)
        self._boxes: dict[int, _Mailbox] = {place.pid: place.protocol for place in self._places if place.pid != me}
        self._bits = difference_bits(bits)
        self._left = [difference[first : first + BATCH] for first in range(0, len(difference), BATCH)]
        self._done: list[Values] = []
        self._batch: Future[Any] | None = None

    def _compare_batch(self, difference: Values) -> "Future[Any]":
        with self._loop.running():
            secure = self._runtime.SecInt(self._bits, self._field.modulus).array(self._field.array(difference))
            less: Future[Any] = self._runtime.gather(self._runtime.np_sgn(secure, l=self._bits, LT=True))
        return less

    def step(self, received: Mapping[int, Sequence[MpycMessage]]) -> dict[int, list[MpycMessage]]:
        """Take in others' messages and go as far as they allow; what this party sends."""
        for sender, messages in received.items():
            self._boxes[sender].deliver(messages)
        try:
            with working_for(self._runtime, self._field.byte_length):
                self._run_batches()
        except SharesError:
            raise
        except Exception as error:  # whatever numpy or MPyC say to shares of a wrong form
            raise SharesError("another party's messages do not fit the comparison") from error
        return {peer: box.collect() for peer, box in self._boxes.items()}

    def _run_batches(self) -> None:
        while self._batch is not None or self._left:
            self._batch = self._batch or self._compare_batch(self._left.pop(0))
            self._loop.run_until_idle()
            if not self._batch.done():
                return
            self._done.append((1 - self._batch.result().value) % self._field.modulus)
            self._batch = None

    @property
    def result(self) -> Values | None:
        """This party's shares of the bits, once they are there: 1 where the difference is at least 0."""
        return None if self._left or self._batch is not None else np.concatenate(self._done)


class _Mailbox:
    """What MPyC takes for the connection with a peer."""

    def __init__(self, loop: MpycEventLoop) -> None:
        self._loop = loop
        self._outgoing: list[MpycMessage] = []
        self._arrived: dict[int, bytes] = {}
        self._awaited: dict[int, Future[bytes]] = {}

    def send(self, place: int, data: bytes) -> None:
        self._outgoing.append(MpycMessage(place, data))

    def receive(self, place: int) -> "bytes | Future[bytes]":
        if place in self._arrived:
            return self._arrived.pop(place)
        awaited = self._awaited[place] = Future(loop=self._loop)  # type: ignore[arg-type]
        return awaited

    def deliver(self, messages: Sequence[MpycMessage]) -> None:
        for place, data in messages:
            if place in self._arrived:
                raise SharesError("two messages for one place of the computation")
            if place in self._awaited:
                self._awaited.pop(place).set_result(data)
            else:
                self._arrived[place] = data

    def collect(self) -> list[MpycMessage]:
        outgoing, self._outgoing = self._outgoing, []
        return outgoing
