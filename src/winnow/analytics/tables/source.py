"""Where the rows of a table are. Unlike the declaration, this is nobody's business but the owner's."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from winnow.core import ConfigError, Settings

FILE_ENDINGS = (".csv", ".csv.gz", ".parquet")
DUCKDB = "duckdb:///"
POSTGRESQL = "postgresql+psycopg://"

Place = Annotated[str, Field(min_length=1, max_length=4000)]


class TableSource(Settings):
    """One of: `file`; `files`, one an owner; `sets`, a file by the name of each set; `table` of the database at `url`.

    `owner` is the column that says whose row it is: it divides one table among simulated owners.
    """

    file: Place | None = None
    files: Annotated[tuple[Place, ...], Field(min_length=1)] | None = None
    sets: Annotated[dict[Annotated[str, Field(min_length=1, max_length=100)], Place], Field(min_length=1)] | None = None
    url: Place | None = None
    table: Place | None = None
    owner: Place | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TableSource":
        if sum(each is not None for each in (self.file, self.files, self.sets, self.url)) != 1:
            raise ValueError("needs one of file, files, sets, or url (with the table of a database)")
        if (self.url is None) != (self.table is None):
            raise ValueError("needs url and table together")
        if self.url is not None and not self.url.startswith((DUCKDB, POSTGRESQL)):
            raise ValueError(f"url must begin with {DUCKDB} or {POSTGRESQL}")
        if self.files is not None and self.owner is not None:
            raise ValueError("has files and owner; with files every file is an owner")
        for place in self.places:
            if not place.lower().endswith(FILE_ENDINGS):
                raise ValueError(f"file = {place!r} has an unsupported type; use one of {', '.join(FILE_ENDINGS)}")
        return self

    @property
    def places(self) -> tuple[str, ...]:
        """All files, as they are written."""
        return (*((self.file,) if self.file else ()), *(self.files or ()), *(self.sets or {}).values())

    def absolute(self, folder: Path) -> "TableSource":
        """With paths that mean the same everywhere; ConfigError if a file is not there."""
        changes: dict[str, object] = {}
        if self.file is not None:
            changes["file"] = _existing(self.file, folder)
        if self.files is not None:
            changes["files"] = tuple(_existing(each, folder) for each in self.files)
        if self.sets is not None:
            changes["sets"] = {name: _existing(each, folder) for name, each in self.sets.items()}
        if self.url is not None and self.url.startswith(DUCKDB):
            changes["url"] = DUCKDB + _existing(self.url.removeprefix(DUCKDB), folder)
        return self.model_copy(update=changes)


def _existing(place: str, folder: Path) -> str:
    path = (folder / Path(place).expanduser()).resolve()
    if not path.is_file():
        raise ConfigError(f"file not found: {path}")
    return str(path)
