"""Owners of a table compare what they declare: what must be equal, and what the strictest of them decides."""

import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from winnow.analytics.tables.declaration import LEVELS, ColumnDeclaration, TableDeclaration
from winnow.core import ConfigError, suggest
from winnow.core.join_names import listed
from winnow.core.untrusted_text import one_line

MUST_AGREE = ("type", "bounds", "values", "together")
"""What programs at all owners compute with; level, key and rows are merged."""
VALUES_SHOWN = 4


def declaration_digest(declaration: TableDeclaration) -> str:
    """SHA-256 of a declaration, the same wherever and in whatever order of columns it is written."""
    text = json.dumps(declaration.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def differences(by_owner: Mapping[str, TableDeclaration], columns: Collection[str] | None = None) -> list[str]:
    """A line for each thing in which owners differ and must not, by the names of two owners.

    Of columns only those that are asked for must be at every owner; without any, those that all owners have.
    """
    first, *_ = by_owner
    if columns is None:
        columns = [name for name in by_owner[first].columns if all(name in each.columns for each in by_owner.values())]
    lines = _differing_units(by_owner)
    for name in columns:
        if lacking := [owner for owner, each in by_owner.items() if name not in each.columns]:
            line = f"{listed(lacking)} {'has' if len(lacking) == 1 else 'have'} no column '{one_line(name)}'"
            if len(lacking) == len(by_owner):
                line = f"no owner has a column '{one_line(name)}'; {suggest(name, by_owner[first].columns, at_most=12)}"
            lines.append(line)
            continue
        lines += _differing_columns(name, {owner: each.columns[name] for owner, each in by_owner.items()})
    return lines


def merge_declarations(
    by_owner: Mapping[str, TableDeclaration], columns: Collection[str] | None = None
) -> TableDeclaration:
    """One declaration for all: the strictest level, a key only where all say so, the smallest `rows`.

    ConfigError names the owners that differ. Columns that some owner lacks are left out; `columns` must be everywhere.
    """
    if lines := differences(by_owner, columns):
        raise ConfigError(f"{'; '.join(lines[:3])}{'; …' if len(lines) > 3 else ''}: owners must declare the same")
    declarations = list(by_owner.values())
    shared = [name for name in declarations[0].columns if all(name in each.columns for each in declarations)]
    if not shared:
        raise ConfigError(f"{', '.join(by_owner)} declare no column in common: owners must declare the same")
    limits = [each.rows for each in declarations if each.rows is not None]
    return TableDeclaration(
        columns={name: _merged([each.columns[name] for each in declarations]) for name in shared},
        unit=declarations[0].unit,
        rows=min(limits, default=None),
        replicated=declarations[0].replicated,
    )


def _merged(columns: list[ColumnDeclaration]) -> ColumnDeclaration:
    first = next((each for each in columns if each.type is not None), columns[0])
    level = max((each.level for each in columns), key=LEVELS.index)
    return first.model_copy(update={"level": level, "key": all(each.key for each in columns)})


def _differing_units(by_owner: Mapping[str, TableDeclaration]) -> list[str]:
    first, *others = by_owner
    for owner in others:
        one, other = by_owner[first].unit, by_owner[owner].unit
        if one != other:
            return [f"{first} and {owner} disagree on unit: {_shown_unit(one)} and {_shown_unit(other)}"]
        if by_owner[first].replicated != by_owner[owner].replicated:
            return [f"{first} and {owner} disagree on replicated"]
    return []


def _differing_columns(name: str, by_owner: Mapping[str, ColumnDeclaration]) -> list[str]:
    lines = []
    for key in MUST_AGREE:
        # a type that neither declaration nor rows settle (all cells are missing) agrees with every other
        known = {
            owner: value
            for owner, each in by_owner.items()
            if (value := each.known_type if key == "type" else getattr(each, key)) is not None or key != "type"
        }
        for (first, one), (owner, other) in list(_pairs(known)):
            if one != other:
                dates = "date" in (by_owner[first].type, by_owner[owner].type)
                shown = f"{_shown(one, dates)} and {_shown(other, dates)}"
                lines.append(f"{first} and {owner} disagree on column '{one_line(name)}': {key} {shown}")
                break
    return lines


def _pairs(values: Mapping[str, Any]) -> list[tuple[tuple[str, Any], tuple[str, Any]]]:
    """The first owner with each of the others."""
    first, *others = values.items() or [("", None)]
    return [(first, other) for other in others]


def _shown_unit(unit: str | None) -> str:
    return "none" if unit is None else repr(one_line(unit))


def _shown(value: Any, dates: bool) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if dates:
        return "[" + ", ".join(f"{datetime.fromtimestamp(86_400 * each, UTC):%Y-%m-%d}" for each in value) + "]"
    texts = [one_line(each)[:60] if isinstance(each, str) else f"{each:g}" for each in value]
    return "[" + ", ".join(texts[:VALUES_SHOWN]) + (", …" if len(texts) > VALUES_SHOWN else "") + "]"
