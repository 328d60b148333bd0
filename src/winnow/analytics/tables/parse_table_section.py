"""A [tables.NAME] section of a federation file or a site's configuration. Agents read it: no row is read here."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from winnow.analytics.tables.declaration import SET_COLUMN, ColumnDeclaration, TableDeclaration
from winnow.analytics.tables.source import TableSource
from winnow.config.validation_error_message import config_error
from winnow.core import ConfigError, Settings, suggest
from winnow.core.untrusted_text import one_line

S = TypeVar("S", bound=Settings)


def parse_table(table: Mapping[str, Any], where: str) -> tuple[TableDeclaration, TableSource]:
    """A [tables.NAME] section as its declaration and its source."""
    known = {*TableDeclaration.model_fields, *TableSource.model_fields}
    if unknown := [key for key in table if key not in known]:
        raise ConfigError(f"{where} unknown key {one_line(unknown[0])}; {suggest(unknown[0], known)}")
    columns = table.get("columns")
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigError(
            f'{where} declares no columns; write a section columns with a level for each, such as age = "protected"'
        )
    if odd := [name for name, column in columns.items() if not isinstance(column, str | Mapping)]:
        raise ConfigError(
            f"{where} column '{one_line(odd[0])}' needs a level, such as \"protected\", or a table of keys"
        )
    declared = {
        name: validated(ColumnDeclaration, column, f"{where} column '{one_line(name)}'")
        for name, column in columns.items()
    }
    rest = {key: value for key, value in table.items() if key in TableDeclaration.model_fields and key != "columns"}
    place = {key: value for key, value in table.items() if key in TableSource.model_fields}
    declaration = validated(TableDeclaration, {**rest, "columns": declared}, where)
    source = validated(TableSource, place, where)
    try:
        return _with_sets(declaration, source), source
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from error


def validated(schema: type[S], given: Any, where: str) -> S:
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        raise config_error(error, where, schema, given if isinstance(given, Mapping) else {}) from error


def _with_sets(declaration: TableDeclaration, source: TableSource) -> TableDeclaration:
    """The declaration with the column that tells the sets apart, where there are any."""
    if source.sets is None:
        return declaration
    if SET_COLUMN in declaration.columns:
        raise ConfigError(f"a column '{SET_COLUMN}' is declared, and sets adds one of that name; rename the column")
    column = ColumnDeclaration(level="public", type="text", values=tuple(source.sets))
    return declaration.model_copy(update={"columns": {**declaration.columns, SET_COLUMN: column}})
