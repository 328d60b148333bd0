"""`federation.toml`: tables of simulated owners, and the rules by which they answer."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from pyarrow import compute

from winnow.analytics.query_rules import ANY, SIMULATION_RULE, QueryRule
from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.parse_table_section import parse_table, validated
from winnow.analytics.tables.read_rows import read_rows
from winnow.analytics.tables.source import TableSource
from winnow.core import ConfigError, DataError, suggest
from winnow.core.untrusted_text import one_line
from winnow.data.file_formats import name_from_file

MAX_OWNERS = 100_000
MAX_OWNER_NAME = 100


@dataclass(frozen=True, kw_only=True)
class FederatedTable:
    """A table that several owners hold."""

    name: str
    declaration: TableDeclaration
    owners: Mapping[str, Callable[[], OwnerTable]]
    """What reads an owner's rows, by its name; none of a replicated table."""
    replicated: Callable[[], OwnerTable] | None
    """What reads the rows that every owner has."""
    queries: tuple[QueryRule, ...]
    files: tuple[Path, ...]
    """Where its rows are, unless they are in a database."""


@dataclass(frozen=True, kw_only=True)
class FederationFile:
    path: Path
    tables: Mapping[str, FederatedTable]

    def table(self, name: str) -> FederatedTable:
        if name not in self.tables:
            raise ConfigError(f"{self.path} has no table '{one_line(name)}'; {suggest(name, self.tables, at_most=12)}")
        return self.tables[name]

    def divided(self, name: str) -> FederatedTable:
        """A table whose rows are divided among owners; ConfigError if it is replicated."""
        table = self.table(name)
        if table.replicated is not None:
            raise ConfigError(
                f"table '{one_line(name)}' is replicated: every owner has the same rows; ask about it in SQL, joined "
                "with a table whose rows are divided"
            )
        return table


def load_federation(path: Path | str) -> FederationFile:
    """Read and check the file; rows are read when an owner is asked, the names of owners in a column at once."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    if unknown := [key for key in content if key not in ("tables", "queries")]:
        raise ConfigError(f"{path}: unknown key {one_line(unknown[0])}; {suggest(unknown[0], ('tables', 'queries'))}")
    tables, rules = content.get("tables", {}), content.get("queries", [])
    if not isinstance(tables, dict) or not tables or not all(isinstance(each, dict) for each in tables.values()):
        raise ConfigError(f"{path} has no tables; write a section [tables.NAME]")
    if not isinstance(rules, list):
        raise ConfigError(f"{path}: queries is a list; write [[queries]]")
    queries = tuple(
        validated(QueryRule, rule, f"{path}: [[queries]] {number}") for number, rule in enumerate(rules, start=1)
    )
    return FederationFile(
        path=path, tables={name: _table(name, table, path, queries) for name, table in tables.items()}
    )


def _table(name: str, table: Mapping[str, Any], path: Path, queries: tuple[QueryRule, ...]) -> FederatedTable:
    where = f"{path}: [tables.{one_line(name)}]"
    declaration, source = parse_table(table, where)
    try:
        source = source.absolute(path.parent)
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from error
    rules = tuple(rule for rule in queries if not rule.tables or {ANY, name} & {*rule.tables})
    return FederatedTable(
        name=name,
        declaration=declaration,
        owners={} if declaration.replicated else _owners(source, declaration, where),
        replicated=_replicated(source, declaration, where) if declaration.replicated else None,
        queries=rules if queries else (SIMULATION_RULE,),
        files=tuple(Path(place) for place in source.places),
    )


def _replicated(source: TableSource, declaration: TableDeclaration, where: str) -> Callable[[], OwnerTable]:
    if source.files is not None or source.owner is not None:
        raise ConfigError(f"{where} is replicated, and files or owner divide its rows; keep one of the two")
    return cache(partial(read_rows, source, declaration))


def _owners(source: TableSource, declaration: TableDeclaration, where: str) -> dict[str, Callable[[], OwnerTable]]:
    if source.files is not None:
        names = [name_from_file(Path(place)) for place in source.files]
        if len({*names}) < len(names):
            raise ConfigError(f"{where} files has two of the same name; owners are called by their files")
        single = [TableSource(file=place) for place in source.files]
        return {name: partial(read_rows, one, declaration) for name, one in zip(names, single, strict=True)}
    if source.owner is None:
        raise ConfigError(
            f'{where} needs owner = "…", the column that says whose row it is, or files = […], one an owner'
        )
    return _divided(source, source.owner, declaration)


def _divided(source: TableSource, owner: str, declaration: TableDeclaration) -> dict[str, Callable[[], OwnerTable]]:
    """The rows of one source by the column that names their owner, which is text and need not be declared."""
    text = ColumnDeclaration(level="public", type="text")
    whole = declaration.model_copy(update={"columns": {owner: text}, "unit": None, "rows": None})
    names = read_rows(source, whole).rows.column(owner)
    if names.null_count:
        row = compute.index(names.is_null(), True).as_py()
        raise DataError(f"column '{owner}', data row {row + 1:,} names no owner; fill it in, or remove the row")
    distinct: Sequence[str] = sorted(names.unique().to_pylist())
    if len(distinct) > MAX_OWNERS:
        raise DataError(f"column '{owner}' names {len(distinct):,} owners; at most {MAX_OWNERS:,} are possible")
    if odd := [each for each in distinct if len(each) > MAX_OWNER_NAME or not each.isprintable()]:
        raise DataError(
            f"column '{owner}': an owner's name must be at most {MAX_OWNER_NAME} printable letters, and "
            f"one is {one_line(odd[0])[:40]!r}"
        )

    @cache
    def everything() -> OwnerTable:
        return read_rows(source, declaration)

    def rows_of(name: str) -> OwnerTable:
        table = everything()
        return OwnerTable(declaration=table.declaration, rows=table.rows.filter(compute.equal(names, name)))

    return {name: partial(rows_of, name) for name in distinct}
