"""The rows of tables 1 to 3: their titles, and which algorithm they run with which settings of their own."""

from dataclasses import dataclass

from winnow.papers.fedprof.read_bundled_toml import read_package_toml


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of a table, or a curve of a figure."""

    title: str
    algorithm: str
    settings: tuple[str, ...]


def table_row(name: str) -> TableRow:
    described = read_package_toml("rows.toml")[name]
    return TableRow(
        title=described["title"],
        algorithm=described.get("algorithm", name),
        settings=tuple(described.get("settings", ())),
    )
