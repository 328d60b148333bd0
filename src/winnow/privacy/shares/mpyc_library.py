"""MPyC as a library. Importing it reads the command line, sets up logging and an event loop; none of that happens here.

MPyC sends arrays as pickles. Nothing of another party is unpickled: `FixedWidth` takes the place of the pickle module
there. It also makes the length of a message depend on nothing but the number of entries. Random elements are drawn for
whole arrays at a time (`field_elements`) where MPyC draws them one by one, which was half of the time.
"""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import Lock
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.field_elements import PseudorandomFunction, from_bytes, np_random_split, to_bytes
from winnow.privacy.shares.mpyc_event_loop import MpycEventLoop

MODULES_WITH_RUNTIME = (
    "asyncoro",
    "mpctools",
    "random",
    "seclists",
    "secgroups",
    "secpols",
    "sectypes",
    "statistics",
)
"""Modules of MPyC that hold the present party in a global."""


class FixedWidth:
    """Arrays of field elements as bytes: every entry takes `width` of them."""

    def __init__(self) -> None:
        self.width = 8

    def dumps(self, values: NDArray[Any]) -> bytes:
        return to_bytes(values, self.width)

    def loads(self, data: bytes) -> NDArray[Any]:
        if len(data) % self.width:
            raise SharesError(f"a message of {len(data)} bytes has no whole number of entries")
        return from_bytes(data, self.width)


WIRE = FixedWidth()
_PRESENT_PARTY = Lock()


@cache
def mpyc() -> ModuleType:
    """MPyC's runtime module; `from_mpyc` has its other modules."""
    with _without_side_effects(), MpycEventLoop().running():
        runtime = import_module("mpyc.runtime")
    runtime.pickle = WIRE  # type: ignore[attr-defined]
    thresha = import_module("mpyc.thresha")
    thresha.PRF = PseudorandomFunction  # type: ignore[attr-defined]
    thresha.np_random_split = np_random_split  # type: ignore[attr-defined]
    return runtime


def from_mpyc(name: str) -> ModuleType:
    mpyc()
    return import_module(f"mpyc.{name}")


@contextmanager
def working_for(runtime: object, width: int) -> Iterator[None]:
    """Within it, MPyC works for this party, whose field elements take `width` bytes; other threads wait."""
    with _PRESENT_PARTY:
        for name in MODULES_WITH_RUNTIME:
            from_mpyc(name).runtime = runtime  # type: ignore[attr-defined]
        WIRE.width = width
        yield


@contextmanager
def _without_side_effects() -> Iterator[None]:
    """A clean command line and environment, and a root logger that counts as set up."""
    argv, quiet = sys.argv, logging.NullHandler()
    settings = {name: value for name, value in os.environ.items() if name.startswith("MPYC_")}
    for name in settings:
        del os.environ[name]
    sys.argv = ["winnow", "--no-log", "--no-uvloop"]
    logging.getLogger().addHandler(quiet)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that numpy is going to drop
            yield
    finally:
        logging.getLogger().removeHandler(quiet)
        sys.argv = argv
        os.environ.update(settings)
