"""The [data] section of a configuration."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from winnow.core import DataError, Settings
from winnow.data.client_files import count_clients
from winnow.data.corruptions import Corruption
from winnow.data.file_formats import name_from_file
from winnow.data.hidden_labels import LabelSettings
from winnow.data.partitions import IidPartition, NaturalPartition, Partition
from winnow.data.preprocessing import Preprocessing
from winnow.data.text import TextSettings


def _rows_or_share(amount: Any) -> Any:
    rows = isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0
    share = isinstance(amount, float) and 0 < amount < 1
    if not (rows or share):
        raise ValueError(f"{amount!r} is neither a number of rows such as 500 nor a share between 0 and 1 such as 0.1")
    return amount


RowsOrShare: TypeAlias = Annotated[int | float, BeforeValidator(_rows_or_share)]
"""So many rows (an integer), or a share of all rows (a fraction below one)."""


def _share_or_official(amount: Any) -> Any:
    if amount == "official" or (isinstance(amount, int | float) and 0 <= amount < 1):
        return amount
    raise ValueError(f"{amount!r} is neither a share of each client's rows such as 0.2 (0: none) nor 'official'")


LocalTest: TypeAlias = Annotated[float | Literal["official"], BeforeValidator(_share_or_official)]
"""What clients test their own models on: a share of their own rows, or their part of the official test split."""

Scale: TypeAlias = Literal["default", "standard", "minmax", "none"]
ProblemType: TypeAlias = Literal["auto", "classification", "regression"]

COLUMN_SETTINGS = ("targets", "features", "categorical", "owner")
"""Settings that name columns of a table."""


def settled_clients(
    table: Mapping[str, Any], *, has_owners: bool = False, otherwise: int | None = None
) -> Mapping[str, Any]:
    """The [data] section with the number of clients where it does not say it: a folder has so many; where rows have
    owners and no partition is set, every owner is a client; `otherwise` so many.
    """
    has_owners = has_owners or table.get("owner") is not None or table.get("table") is not None
    if has_owners and "partition" not in table:
        return {"clients": 0, **table, "partition": {"name": "natural"}}
    if "clients" not in table and table.get("text") is None and isinstance(table.get("path"), str | Path):
        folder = Path(table["path"]).expanduser()
        otherwise = count_clients(folder) if folder.is_dir() else otherwise
    return table if otherwise is None else {"clients": otherwise, **table}


class DataSettings(Settings):
    """Which data, spread how over how many clients, spoiled how.

    `name` is a known set. With `path` the data are the user's own, and called after their file: an .npz with arrays x
    and y (and owners), or a .csv or .parquet file whose `targets` name the target columns. With `tokens` the features
    are identifiers of words or the like, and stay whole numbers; `categorical` names columns of numbers that are
    categories. With `text` the features are texts, whose words become such identifiers. With `owner` every owner is a
    client, unless a partition is set. A folder as `path` holds an .npz a client. With `table` the data are a declared
    table that several owners hold, and `path` is the federation file. The owners `left_out` are no clients: their
    rows are the test set. With `test_owners` reference and test set are drawn from rows of these alone. `labels` says
    whose labels are known, and `open` how many rows without labels everybody may see.
    """

    name: str = "digits"
    path: Path | None = Field(default=None, strict=False)
    table: str | None = None
    targets: tuple[str, ...] = ()
    features: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    owner: str | None = None
    task: ProblemType = "auto"
    tokens: bool = False
    text: TextSettings | None = None
    scale: Scale = "default"
    preprocessing: Preprocessing | None = None
    clients: int = Field(default=50, ge=0)
    partition: Partition = IidPartition()
    reference: RowsOrShare = 0.1
    test: RowsOrShare = 0.1
    local_test: LocalTest = 0.0
    left_out: tuple[str, ...] = ()
    test_owners: tuple[str, ...] = ()
    labels: LabelSettings | None = None
    open: int = Field(default=0, ge=0)
    corruptions: tuple[Corruption, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _called_after_its_file(cls, table: Any) -> Any:
        if not isinstance(table, Mapping) or "name" in table:
            return table
        if isinstance(table.get("table"), str):
            return {**table, "name": table["table"]}
        if not isinstance(table.get("path"), str | Path):
            return table
        return {**table, "name": name_from_file(Path(table["path"]))}

    @model_validator(mode="before")
    @classmethod
    def _as_many_clients_as_the_data_have(cls, table: Any) -> Any:
        return settled_clients(table) if isinstance(table, Mapping) else table

    @field_validator("targets", "features", "categorical", "left_out", "test_owners", mode="before")
    @classmethod
    def _one_or_several(cls, names: Any) -> Any:
        return (names,) if isinstance(names, str) else names

    @field_validator("path")
    @classmethod
    def _anywhere(cls, path: Path | None) -> Path | None:
        """A run may be resumed from another folder."""
        return path and path.expanduser().absolute()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        total = sum(corruption.fraction for corruption in self.corruptions)
        if total > 1 + 1e-9:
            raise ValueError(f"the fractions of the corruptions sum to {total:g}; the sum must be at most 1")
        if self.clients == 0 and not isinstance(self.partition, NaturalPartition):
            raise ValueError("clients = 0 (one per owner) needs partition natural; otherwise set the number of clients")
        if self.preprocessing is not None:
            unused: tuple[str, ...] = ("features", "categorical", "scale", "tokens", "text", "task")
            self._refuse(unused, "{} has no effect beside a stated preprocessing; remove one of the two")
        if self.text is not None:
            self._refuse(("tokens", "categorical", "scale"), "{0} has no effect on texts; remove {0} or text")
        if self.left_out:
            unused = ("test", "test_owners")
            self._refuse(unused, "{} has no effect beside left_out, whose rows are the test set; remove one of the two")
        if self.labels is not None and self.labels.holders == {"server"} and self.local_test:
            raise ValueError("local_test needs labels at clients, and labels are at the server; remove one of the two")
        if self.table is not None:
            self._check_table()
        if self.reference == 0:
            raise ValueError("reference = 0 leaves no data to evaluate on; set a number of rows or a share")
        return self

    def _check_table(self) -> None:
        if self.table != self.name:
            raise ValueError(f"name and table differ ({self.name!r} and {self.table!r}); remove name")
        if not self.targets:
            raise ValueError('a table needs the columns to predict: targets = ["…"]')
        unused = ("categorical", "owner", "tokens", "text", "scale", "task")
        self._refuse(unused, "{0} has no effect on a table, whose declaration says it; remove {0}")

    def _refuse(self, keys: Iterable[str], message: str) -> None:
        for key in keys:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(message.format(key))

    def require_unset(self, keys: Iterable[str], what: str) -> None:
        """A setting that would have no effect is a mistake."""
        for key in keys:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise DataError(f"data.{key} has no effect on {what}; remove it")
