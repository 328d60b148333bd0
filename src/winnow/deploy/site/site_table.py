"""A [tables.NAME] section of `site.toml`: rows that questions can be asked about.

    [tables.stays]
    url = "postgresql+psycopg://reader@localhost/clinic"     # or file = "stays.csv", or sets = { train = …, test = … }
    table = "ward.stays"
    unit = "patient"
    rows = 3
    [tables.stays.columns]
    age = { level = "protected", bounds = [0, 110] }

Pydantic is loaded only where there is such a section: an agent without tables stays small.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.core.errors import ConfigError
from winnow.deploy.site.database_query_export import fetch_table

if TYPE_CHECKING:
    from winnow.analytics.tables.declaration import TableDeclaration


@dataclass(frozen=True, kw_only=True)
class SiteTable:
    """The section, checked, with absolute paths and nothing that JSON cannot hold."""

    section: dict[str, Any]

    @property
    def declaration(self) -> "TableDeclaration":
        from winnow.analytics.tables.parse_table_section import parse_table  # noqa: PLC0415

        return parse_table(self.section, "site.toml:")[0]

    @property
    def places(self) -> tuple[str, ...]:
        """Files and addresses: what nobody outside may read."""
        url = self.section.get("url", "")
        named = (self.section.get("file", ""), url, url.removeprefix("duckdb:///"))
        return (*(each for each in named if each), *self.section.get("sets", {}).values())

    def worker_table(
        self, name: str, folder: Path, question: dict[str, Any], stopped: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """The section for the worker. Of a database it gets the rows that a question may need (of none, all), in a file
        of the folder, and no address.
        """
        if "url" not in self.section:
            return self.section
        rows = folder / f"{name}.parquet"
        fetch_table(name, self.section, question, rows, stopped)
        kept = {key: value for key, value in self.section.items() if key not in ("url", "table")}
        return {**kept, "file": str(rows)}


def site_table(section: Mapping[str, Any], where: str, folder: Path) -> SiteTable:
    """The section, or a ConfigError in one line."""
    from winnow.analytics.query_extra import require_query_extra  # noqa: PLC0415
    from winnow.analytics.tables.declaration import SET_COLUMN  # noqa: PLC0415
    from winnow.analytics.tables.parse_table_section import parse_table  # noqa: PLC0415

    require_query_extra()
    declaration, source = parse_table(section, where)
    if source.files is not None or source.owner is not None:
        key = "files" if source.files is not None else "owner"
        raise ConfigError(f"{where} {key} divides rows among simulated owners; a site is one owner: remove {key}")
    try:
        source = source.absolute(folder)
    except ConfigError as error:
        raise ConfigError(f"{where} {error}") from error
    columns = {
        name: column.model_dump(mode="json", exclude_none=True)
        for name, column in declaration.columns.items()
        if not (source.sets and name == SET_COLUMN)
    }
    rest = declaration.model_dump(mode="json", exclude_none=True, exclude={"columns"})
    return SiteTable(section={**source.model_dump(mode="json", exclude_none=True), **rest, "columns": columns})
