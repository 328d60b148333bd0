"""How kernels are compiled: at run time for the machine at hand, and for wheels, which serve many machines.

`build_training_workflow.py` runs this file by itself, so it imports nothing of Winnow.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent / "source"
PACKAGED = Path(__file__).parent / "compiled"
"""Where a wheel has its kernels; a clone has none."""
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread")
REALS = ("float", "double")
WIDE = 16
"""Samples in a block, where processors have vectors of 512 bits."""
NARROW = 8


class Level(NamedTuple):
    """Processors that one compiled file serves."""

    name: str
    """As compilers call it: -march=name."""
    features: frozenset[str]
    """What a processor must be able to do, in the words of /proc/cpuinfo."""

    def lanes(self, real: str) -> tuple[int, ...]:
        return lanes(real, self.features)


_V3 = frozenset({"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe", "xsave"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = {
    "x86_64": (Level("x86-64-v4", _V4), Level("x86-64-v3", _V3)),
    "aarch64": (Level("armv8-a", frozenset()),),
}
"""By machine, the most able first."""


def lanes(real: str, features: frozenset[str]) -> tuple[int, ...]:
    """How many samples fill a vector; small batches would waste most of a wide one."""
    return (NARROW, WIDE) if real == "float" and "avx512f" in features else (NARROW,)


def definitions(real: str, lanes: int) -> tuple[str, str]:
    return f"-DREAL={real}", f"-DLANES={lanes}"


def packaged_name(level: Level, real: str, lanes: int, source: Path = SOURCE) -> str:
    """The file of a wheel. It names the source that it was made from, so one that is out of date is not found."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sorted(source.iterdir()):
        digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return f"{digest.hexdigest()[:16]}-{level.name}-{real}-{lanes}.so"


def compile_command(
    compiler: Sequence[str], target: str, real: str, lanes: int, source: Path, library: Path
) -> list[str]:
    """The command that compiles one library; `compiler` is the start of a command line."""
    return [*compiler, *FLAGS, *definitions(real, lanes), target, str(source / "native.cpp"), "-o", str(library)]
