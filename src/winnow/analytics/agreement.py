"""What the parties of an analysis agree on before a step: question, terms, who takes part, and what was opened."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from winnow.analytics.program import (
    Compare,
    CountDistinct,
    Match,
    Mix,
    PartyProtocol,
    Product,
    Step,
    SumChain,
    opened_length,
    thresholds_of,
)
from winnow.analytics.program_run import ProgramRun
from winnow.analytics.question import Answer, MergedTerms, QueryTerms, Question, merge_terms
from winnow.core import ConfigError
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.core.untrusted_text import one_line
from winnow.privacy.mixing.mix_party import MixStep
from winnow.privacy.set_intersection.match_party import MatchStep
from winnow.privacy.set_intersection.psi_protocol import padded_length
from winnow.privacy.set_intersection.union_party import UnionStep
from winnow.privacy.shares.masked_sum import MaskedStep
from winnow.privacy.shares.message_party import MessageStep
from winnow.privacy.shares.party import SecureStep
from winnow.privacy.shares.product_step import ProductStep

SERVER = -1
"""The number of the server among the parties; clients have numbers from 0 on."""
ProtocolStep: TypeAlias = SecureStep | MaskedStep | MatchStep | UnionStep | MixStep | ProductStep | MessageStep
"""A step of a program as its parties compute it."""
MAX_OWNERS = 1_000


class Statement(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What an owner said when the question was put to it: its terms as JSON; a helper, which has no rows, has none."""

    client: int
    owner: str
    terms: str


def encode_statements(statements: Sequence[Statement]) -> str:
    return msgspec.json.encode(statements).decode()


def decode_statements(text: str) -> list[Statement]:
    """As the server passes them on."""
    try:
        statements = from_json(text.encode(), list[Statement])
    except UnreadableError as error:
        raise ConfigError("the owners' terms cannot be read") from error
    clients = [each.client for each in statements]
    if clients != sorted({*clients}) or len({each.owner for each in statements}) != len(statements):
        raise ConfigError("the list of owners has one twice, or is out of order")
    if not 0 < len(statements) <= MAX_OWNERS:
        raise ConfigError(f"a question takes 1 to {MAX_OWNERS:,} owners, not {len(statements):,}")
    return statements


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The same at every party, or they refuse each other's messages."""

    question: Question
    submission: str
    statements: tuple[Statement, ...]

    @cached_property
    def owners(self) -> tuple[int, ...]:
        return tuple(each.client for each in self.statements if each.terms)

    @cached_property
    def third_party(self) -> int | None:
        """Two owners need one: a helper if there is any, else the server."""
        helpers = [each.client for each in self.statements if not each.terms]
        return (helpers[0] if helpers else SERVER) if len(self.owners) == 2 else None

    @cached_property
    def names(self) -> dict[int, str]:
        return {SERVER: "the server", **{each.client: each.owner for each in self.statements}}

    @cached_property
    def terms(self) -> MergedTerms:
        return merge_terms(self.question, {each.owner: _read(each) for each in self.statements if each.terms})

    def run(self, opened: Sequence[bytes] = ()) -> ProgramRun[Answer]:
        """The question's program, as far as it was answered."""
        return ProgramRun(self.question.program(self.terms), len(self.owners), opened)

    @cached_property
    def helper(self) -> int | None:
        """Who computes without rows, and is told what is opened like the owners."""
        return None if self.third_party == SERVER else self.third_party

    def secure_step(self, run: ProgramRun[Answer]) -> ProtocolStep:
        """The program's present step, as the parties compute it."""
        step, owners = run.step, len(self.owners)
        assert step is not None
        if isinstance(step, Match):
            return MatchStep(
                digest=self._digest(step, run.opened),
                everybody=self.owners if self.helper is None else (*self.owners, self.helper),
                parties=tuple(self.owners[place] for place in step.parties),
                reveal=step.reveal,
                share=step.share,
                minimum=step.minimum,
            )
        if isinstance(step, CountDistinct):
            return UnionStep(
                digest=self._digest(step, run.opened),
                owners=self.owners,
                helper=self.helper,
                length=padded_length(step.most),
                identifiers=step.identifiers,
                minimum=step.minimum,
            )
        if isinstance(step, Mix):
            digest = self._digest(step, run.opened)
            return MixStep(digest=digest, owners=self.owners, helper=self.helper, slots=step.slots, width=step.width)
        if isinstance(step, SumChain):
            return MaskedStep(
                digest=self._digest(step, run.opened),
                everybody=self.owners if self.helper is None else (*self.owners, self.helper),
                server=SERVER,
                sums=step.sums,
                masked=step.masked,
            )
        if isinstance(step, Product):
            return self._product_step(step, run.opened)
        if isinstance(step, PartyProtocol):
            return self._message_step(step, run.opened)
        return SecureStep(
            digest=self._digest(step, run.opened),
            owners=self.owners,
            third_party=self.third_party,
            length=opened_length(step, owners),
            bits=step.bits,
            thresholds=thresholds_of(step, owners) if isinstance(step, Compare) else None,
        )

    def _product_step(self, step: Product, opened: Sequence[bytes]) -> ProductStep:
        if self.third_party is None:
            raise ConfigError(f"a product takes two owners; here they are {len(self.owners)}")
        left, right = (self.owners[place] for place in step.parties)
        return ProductStep(
            digest=self._digest(step, opened),
            parties=(left, right, self.third_party),
            rows=step.rows,
            columns=step.columns,
            bits=step.bits,
            thresholds=step.thresholds,
            entries=step.entries,
        )

    def _message_step(self, step: PartyProtocol, opened: Sequence[bytes]) -> MessageStep:
        if self.third_party is None:
            raise ConfigError(f"{step.label} takes two owners; here they are {len(self.owners)}")
        first, second = (self.owners[place] for place in step.parties)
        return MessageStep(
            digest=self._digest(step, opened),
            parties=(first, second, self.third_party),
            third_party=self.third_party,
            max_exchanges=step.max_exchanges,
        )

    def _digest(self, step: Step, opened: Sequence[bytes]) -> bytes:
        asked = thresholds_of(step, len(self.owners)) if isinstance(step, Compare) else np.zeros(0, np.int64)
        agreed = (
            "winnow analysis 1",
            self.submission,
            self.question.model_dump_json(),
            encode_statements(self.statements),
            list(opened),
            (step.label, type(step).__name__, step.length, step.per_owner, _bytes(asked), *_details(step)),
        )
        return sha256(msgspec.msgpack.encode(agreed)).digest()


def _details(step: Step) -> tuple[object, ...]:
    if isinstance(step, Match):
        return (step.parties, step.reveal, step.share, step.minimum)
    if isinstance(step, CountDistinct):
        return (step.most, step.identifiers, step.minimum)
    if isinstance(step, Mix):
        return (step.slots, step.size, step.reader)
    if isinstance(step, SumChain):
        return (step.sums, step.words, step.masked, step.by_owner)
    if isinstance(step, PartyProtocol):
        return (step.parties, step.max_exchanges)
    if isinstance(step, Product):
        limits = b"" if step.thresholds is None else _bytes(step.thresholds)
        return (step.parties, step.rows, step.columns, _bytes(step.entries), step.thresholds is None, limits, step.bits)
    return (step.bits, step.pairs if isinstance(step, Compare) else ())


def _bytes(values: NDArray[np.int64]) -> bytes:
    return np.ascontiguousarray(values, "<i8").tobytes()


_parsed = lru_cache(maxsize=2 * MAX_OWNERS)(QueryTerms.model_validate_json)
"""Simulated owners read the same statements."""


def _read(statement: Statement) -> QueryTerms:
    try:
        return _parsed(statement.terms)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(one_line(f"the terms of {statement.owner} cannot be read: {where}: {first['msg']}")) from None
