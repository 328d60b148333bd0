"""A question as a program: a generator that yields secure steps and receives what they opened.

Every owner runs the same program on its own rows, and so does the server without rows. The next step follows from the
question and from what was opened before, so nobody sends a plan, and nobody can be asked for something else.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from winnow.core import stream
from winnow.privacy.concentrated_privacy import discrete_gaussian
from winnow.privacy.mixing.sealed_rows import box_bytes, sealed_rows
from winnow.privacy.shares.masked_sum import VectorProgram, add_up
from winnow.privacy.shares.message_party import SessionMemory, StartProgram, converse

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

Local: TypeAlias = Callable[["OwnerTable"], NDArray[np.int64]]
"""What an owner puts into a step: whole numbers, worked out from its own rows."""
Opened: TypeAlias = NDArray[Any]
"""What a step opened: whole numbers (dtype object; int64 by a chain or a protocol), bool by a comparison, bytes by a
mix.
"""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Discrete Gaussian noise in a sum that costs `rho`; a person's rows move the vector by at most `sensitivity` (L2).

    Every owner adds an equal share, and all but one of them make σ = sensitivity/√(2ρ): an owner that takes its own
    share off again learns no more than the others. A share should be of three units or more, which is where a sum of
    discrete Gaussians is one itself (Kairouz, Liu and Steinke, 2021, section 4).
    """

    rho: float
    sensitivity: float

    def share_deviation(self, owners: int) -> float:
        return self.sensitivity / sqrt(2 * self.rho * max(owners - 1, 1))

    def deviation(self, owners: int) -> float:
        """The standard deviation of the noise in the sum."""
        return self.share_deviation(owners) * sqrt(owners)


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Opens Σ local over the owners, whose entries are below 2**bits in size; by owner (owners × length) where asked,
    with zeros in place of what is not `shown`.

    `hidden` cells are left out of it by the program because too few rows stand behind them; the event log counts them.
    """

    label: str
    local: Local
    length: int
    bits: int = 62
    noise: Noise | None = None
    per_owner: bool = False
    shown: NDArray[np.bool_] | None = None
    hidden: int = 0


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Opens nothing but Σ local ≥ threshold, entry by entry; sums and thresholds are below 2**bits in size.

    With `pairs` of owners' places, an entry for each pair, `local` is one number: it counts for the first of a pair and
    against the second.
    """

    label: str
    local: Local
    thresholds: NDArray[np.int64]
    bits: int = 32
    per_owner: bool = False
    pairs: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if np.any(np.abs(self.thresholds) >= 1 << self.bits):
            raise ValueError(f"step {self.label!r} compares with more than its {self.bits} bits hold")

    @property
    def length(self) -> int:
        return len(self.thresholds)


@dataclass(frozen=True, kw_only=True)
class Match:
    """Finds what owners have in common by set intersection. Opens whether it is `minimum` or more, and how many.

    `parties` are places of owners: the first of them learns which (unless `reveal` is "size"), and with `share` the
    others, too.
    """

    label: str
    local: Callable[["OwnerTable"], list[str]]
    parties: tuple[int, ...]
    minimum: int
    reveal: Literal["intersection", "size"] = "intersection"
    share: bool = False

    length: ClassVar[int] = 2
    per_owner: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class CountDistinct:
    """Counts the different identifiers that owners have. Opens whether they are `minimum` or more, and how many.

    No owner has more than `most`, and together they have `identifiers`, those that several have counted as often.
    """

    label: str
    local: Callable[["OwnerTable"], list[str]]
    most: int
    identifiers: int
    minimum: int

    length: ClassVar[int] = 2
    per_owner: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Opens `slots` boxes of each owner in an order that nobody knows: its rows, of up to `size` bytes each, sealed to
    the key of `reader`, and empty ones.
    """

    label: str
    local: Callable[["OwnerTable"], list[bytes]]
    slots: int
    size: int
    reader: bytes

    per_owner: ClassVar[bool] = True

    @property
    def width(self) -> int:
        """Bytes of a box."""
        return box_bytes(self.size)

    @property
    def length(self) -> int:
        return self.slots * self.width


@dataclass(frozen=True, kw_only=True)
class SumChain:
    """Opens sums over the owners of long vectors, of which each follows from the sums before; what is kept are the
    `length` whole numbers that they come to.

    `vectors` gives the same program at every party, with values where it has rows. `sums` and `words` say how many sums
    and how many numbers in all are opened at most, `shows` what they are. Without `masked` the server sees every
    owner's.
    """

    label: str
    vectors: Callable[["OwnerTable | None"], VectorProgram]
    length: int
    sums: int
    words: int
    shows: str
    masked: bool = True
    by_owner: bool = False
    """Whether some numbers are one owner's alone: in the sum, others have 0 in their place."""

    per_owner: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Product:
    """Opens entries of LᵀR, whose factors two owners have (`parties`, by their places); with `thresholds` only whether
    entries reach them. Both matrices have `rows` rows that belong together.

    `hidden` entries are left out by the program because too few rows stand behind them; the event log counts them.
    """

    label: str
    local: Callable[["OwnerTable"], NDArray[np.int64]]
    """An owner's matrix."""
    parties: tuple[int, int]
    rows: int
    columns: tuple[int, int]
    entries: NDArray[np.int64]
    """Which are opened, row by row."""
    thresholds: NDArray[np.int64] | None = None
    bits: int = 62
    hidden: int = 0

    per_owner: ClassVar[bool] = False

    @property
    def length(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, kw_only=True)
class PartyProtocol:
    """Two owners (`parties`, by their places) and the third party run a protocol of their own; what everybody learns
    are `length` whole numbers, and each owner keeps something to itself (`OwnerTable.kept`).

    `start` gives the program of a party by its place in the protocol: 0 and 1 of the owners, 2 of the third party,
    which has no table. `learns` says by place what a party learns besides. `files` are what an owner finds among the
    results of its site, by name.
    """

    label: str
    start: Callable[["OwnerTable | None", int], StartProgram]
    parties: tuple[int, int]
    length: int
    exchanges: int
    """As they are likely; `max_exchanges` is what honest parties need at most."""
    max_exchanges: int
    sent_bytes: int
    learns: tuple[str, str, str] = ("", "", "")
    files: Callable[["OwnerTable", bytes], Mapping[str, str]] | None = None

    per_owner: ClassVar[bool] = False


NumberStep: TypeAlias = Sum | Compare
Step: TypeAlias = NumberStep | Match | CountDistinct | Mix | SumChain | Product | PartyProtocol
Program: TypeAlias = Generator[Step, Opened, T]


def opened_length(step: Step, owners: int) -> int:
    return step.length * (owners if step.per_owner else 1)


def opens_bits(step: Step) -> bool:
    """Whether it tells nothing but yes or no of each entry."""
    return isinstance(step, Compare) or (isinstance(step, Product) and step.thresholds is not None)


def thresholds_of(step: Compare, owners: int) -> NDArray[np.int64]:
    """One threshold for each entry that is opened."""
    return np.tile(step.thresholds, owners) if step.per_owner else step.thresholds


def local_vector(step: NumberStep, table: "OwnerTable", owner: int, owners: int) -> NDArray[np.int64]:
    """What the owner with this number puts into a step: in a place of its own where the step is by owner."""
    values = np.asarray(step.local(table), dtype=np.int64)
    if isinstance(step, Compare) and step.pairs:
        values = values * np.array([(first == owner) - (second == owner) for first, second in step.pairs], np.int64)
    if values.shape != (step.length,) or np.any(np.abs(values) >= 1 << step.bits):
        raise ValueError(f"step {step.label!r} does not fit its own length or size")
    if not step.per_owner:
        return values
    placed = np.zeros((owners, step.length), np.int64)
    shown = step.shown if isinstance(step, Sum) else None
    placed[owner] = values if shown is None else np.where(shown[owner], values, 0)
    return placed.reshape(-1)


def noise_share(step: NumberStep, owners: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """An owner's share of a step's noise."""
    length = opened_length(step, owners)
    if isinstance(step, Compare) or step.noise is None:
        return np.zeros(length, np.int64)
    return discrete_gaussian(step.noise.share_deviation(owners), length, rng)


def run_plain(program: Callable[[], Program[T]], tables: "Sequence[OwnerTable]", seed: int = 0) -> T:
    """The answer without any protection: what every other way of running a program is compared with."""
    running = program()
    tables = [replace(table, place=place, secret=b"plain %d" % place) for place, table in enumerate(tables)]
    try:
        step = next(running)
        for number in count():
            step = running.send(_opened(step, tables, seed, number))
    except StopIteration as stop:
        answer: T = stop.value
        return answer
    raise AssertionError


def _opened(step: Step, tables: "list[OwnerTable]", seed: int, number: int) -> Opened:
    if isinstance(step, Match):
        return _matched(step, tables)
    if isinstance(step, Product):
        left, right = (step.local(tables[place]).astype(object) for place in step.parties)
        entries: Opened = (left.T @ right).reshape(-1)[step.entries]
        return entries if step.thresholds is None else (entries >= step.thresholds).astype(bool)
    if isinstance(step, CountDistinct):
        return _told_size(len({each for table in tables for each in step.local(table)}), step.minimum)
    if isinstance(step, Mix):
        boxes = [sealed_rows(step.local(table), step.slots, step.size, step.reader) for table in tables]
        return np.frombuffer(b"".join(box for own in boxes for box in own), np.uint8)
    if isinstance(step, SumChain):
        return add_up([step.vectors(table) for table in tables])
    if isinstance(step, PartyProtocol):
        return _conversed(step, tables)
    return _computed(step, tables, seed, number)


def _conversed(step: PartyProtocol, tables: "list[OwnerTable]") -> Opened:
    rows: list[OwnerTable | None] = [*(tables[place] for place in step.parties), None]
    results = converse([step.start(table, place)(SessionMemory()) for place, table in enumerate(rows)])
    for place, result in zip(step.parties, results, strict=False):
        tables[place] = replace(tables[place], kept=result.kept)
    return results[0].opened


def _computed(step: NumberStep, tables: "Sequence[OwnerTable]", seed: int, number: int) -> Opened:
    owners = len(tables)
    parts = [local_vector(step, table, owner, owners) for owner, table in enumerate(tables)]
    parts += [noise_share(step, owners, stream(seed, "noise", number, owner)) for owner in range(owners)]
    total: Opened = sum((part.astype(object) for part in parts), np.zeros(opened_length(step, owners), object))
    return total if isinstance(step, Sum) else (total >= thresholds_of(step, owners)).astype(bool)


def _matched(step: Match, tables: "list[OwnerTable]") -> Opened:
    lists = [{*step.local(tables[place])} for place in step.parties]
    common = lists[0].intersection(*lists[1:])
    if step.share and len(common) >= step.minimum:
        for place in step.parties:
            tables[place] = replace(tables[place], matched=tuple(sorted(common)))
    return _told_size(len(common), step.minimum)


def _told_size(size: int, minimum: int) -> Opened:
    enough = size >= minimum
    return np.array([int(enough), size if enough else 0], dtype=object)
