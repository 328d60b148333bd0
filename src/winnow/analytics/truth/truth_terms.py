"""What all participants of a private truth discovery agree upon before it starts."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Literal, TypeAlias, get_args

from winnow.analytics.truth.truth_methods import TruthMethod, method_named
from winnow.analytics.truth.truth_vectors import vector_length
from winnow.analytics.truth.vector_shares import bits_behind_point
from winnow.core import ConfigError, stream

Dropouts: TypeAlias = Literal["kept", "adaptive"]
KEPT: Dropouts = "kept"
MIN_PARTICIPANTS = 3
HEADER_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class TruthTerms:
    """The method, the items, who holds shares, and how many holders open a sum.

    `dropouts` says what becomes of a participant who leaves: its last vector stays in the sums ("kept"), or the sums
    lose it and the confidences move more slowly ("adaptive", equations 27 and 28).
    """

    method_name: str
    items: int
    classes: int
    participants: int
    holders: tuple[int, ...]
    threshold: int
    dropouts: Dropouts = KEPT

    @property
    def method(self) -> TruthMethod:
        return method_named(self.method_name)

    @property
    def length(self) -> int:
        """Entries of a vector."""
        return vector_length(self.method, self.items, self.classes)

    @property
    def columns(self) -> int:
        return self.method.columns(self.classes)

    @property
    def bits(self) -> int:
        return bits_behind_point(self.participants, self.method.bound)

    def header(self, round: int, sender: int, holder: int, told: bytes) -> bytes:
        """The first bytes of a message: it fits these terms, this round, this sender and this holder alone, and the
        estimate that the sender was told, of which `told` is a digest.
        """
        place = repr((round, sender, holder)).encode()
        return blake2b(self._digest + told + place, digest_size=HEADER_BYTES).digest()

    @cached_property
    def _digest(self) -> bytes:
        return blake2b(repr(self).encode()).digest()


def agree_on_terms(
    *,
    method: str,
    items: int,
    classes: int,
    participants: int,
    holders: int | None = None,
    threshold: int | None = None,
    dropouts: str = KEPT,
    seed: int = 0,
) -> TruthTerms:
    """Terms with a committee drawn at random, or everybody as a holder. By default more than half of the holders open
    a sum, so no two groups of them can open two different ones.
    """
    if participants < MIN_PARTICIPANTS:
        raise ConfigError(
            f"{participants} participants are too few for a private truth discovery, which takes {MIN_PARTICIPANTS}: "
            "of two, each could subtract its own answers"
        )
    if holders is not None and not MIN_PARTICIPANTS <= holders <= participants:
        raise ConfigError(f"holders: {holders} is not between {MIN_PARTICIPANTS} and the {participants} participants")
    committee = holders or participants
    needed = committee // 2 + 1 if threshold is None else threshold
    if not 2 <= needed <= committee:
        raise ConfigError(f"threshold: {needed} is not between 2 and the {committee} holders")
    if dropouts not in get_args(Dropouts):
        raise ConfigError(f"dropouts: {dropouts!r} is neither {' nor '.join(map(repr, get_args(Dropouts)))}")
    drawn = stream(seed, "truth", "holders").choice(participants, committee, replace=False)
    terms = TruthTerms(
        method_name=method,
        items=items,
        classes=classes,
        participants=participants,
        holders=tuple(sorted(drawn.tolist())),
        threshold=needed,
        dropouts="adaptive" if dropouts == "adaptive" else KEPT,
    )
    bits_behind_point(participants, terms.method.bound)
    return terms
