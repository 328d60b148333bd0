"""The question of a set intersection between owners of a table, by a key column."""

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from winnow.analytics.permissions import Permission
from winnow.analytics.question import Answer, MergedTerms, Question
from winnow.core import ConfigError, suggest

if TYPE_CHECKING:
    from winnow.analytics.program import Program
    from winnow.analytics.tables.owner_table import OwnerTable


class IntersectQuestion(Question):
    """`between` names the owners, the first of whom asks and learns; all of them if none is named.

    Blank keys are none, and a key that an owner has several times counts once.
    """

    kind: Literal["intersect"] = "intersect"
    key: str = Field(min_length=1)
    between: tuple[str, ...] = ()
    reveal: Literal["intersection", "size"] = "intersection"
    share: bool = False
    """Whether the others, too, learn which keys are in common."""

    @model_validator(mode="after")
    def _consistent(self) -> "IntersectQuestion":
        if self.epsilon is not None:
            raise ValueError("a set intersection is exact; it takes no epsilon")
        if self.reveal == "size" and self.share:
            raise ValueError("reveal = 'size' leaves nothing to share")
        if len(self.between) == 1 or len({*self.between}) < len(self.between):
            raise ValueError("between takes two or more different owners")
        return self

    def needs(self) -> frozenset[Permission]:
        return frozenset({"match"})

    def program(self, terms: MergedTerms) -> "Program[Answer]":
        from winnow.analytics.program import Match  # noqa: PLC0415 - who only reads questions loads no tables

        if not terms.declaration.column(self.key).key:
            raise ConfigError(f"column '{self.key}' is not a key at every owner; declare key = true to match by it")
        if terms.sizes_only is not None and self.reveal != "size":
            raise ConfigError(f"{terms.sizes_only} tells only how many keys are in common; ask for reveal = 'size'")
        between = self.between or terms.owners
        for owner in between:
            if owner not in terms.owners:
                raise ConfigError(f"there is no owner '{owner}'; {suggest(owner, terms.owners, at_most=12)}")
        if len(between) < 2:
            raise ConfigError("a set intersection takes two or more owners")
        if self.reveal == "size" and len(between) > 2:
            raise ConfigError(
                f"reveal = 'size' takes two owners, not {len(between)}: the first would learn which keys it shares "
                "with the second; name two, or reveal the intersection"
            )
        key = self.key
        enough, size = yield Match(
            label=f"keys of {' and '.join(between)}",
            local=lambda table: identifiers(table, key),
            parties=tuple(terms.owners.index(owner) for owner in between),
            minimum=terms.minimum,
            reveal=self.reveal,
            share=self.share,
        )
        return {
            "kind": self.kind,
            "table": self.table,
            "key": self.key,
            "owners": list(between),
            "reveal": self.reveal,
            "shared": self.share,
            "minimum": terms.minimum,
            "size": int(size) if enough else None,
        }


def identifiers(table: "OwnerTable", column: str) -> list[str]:
    """The cells as text; whole numbers without a point."""
    found = {identifier_text(cell) for cell in table.rows.column(column).drop_null().unique().to_pylist()}
    return sorted(found - {""})


def identifier_text(cell: object) -> str:
    """What owners compare."""
    if isinstance(cell, float) and np.isfinite(cell) and cell == int(cell):
        return str(int(cell))
    return str(cell).strip()
