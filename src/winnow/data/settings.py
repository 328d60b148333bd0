"""The [data] section of a configuration."""

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from winnow.core import Settings
from winnow.data.corruptions import Corruption
from winnow.data.partitions import Iid, Natural, Partition

Amount: TypeAlias = Annotated[int, Field(ge=0, strict=True)] | Annotated[float, Field(gt=0, lt=1)]
"""So many rows (an integer), or a share of all rows (a fraction below one)."""

Scale: TypeAlias = Literal["default", "standard", "minmax", "none"]
Task: TypeAlias = Literal["auto", "classification", "regression"]


class DataSettings(Settings):
    """Which data, spread how over how many clients, spoiled how.

    `name` is a known set. With `path` the data are the user's own: an .npz with arrays x and y (and owners), or a .csv
    or .parquet file whose `targets` name the target columns.
    """

    name: str = "digits"
    path: Path | None = Field(default=None, strict=False)
    targets: tuple[str, ...] = ()
    features: tuple[str, ...] | None = None
    owner: str | None = None
    task: Task = "auto"
    scale: Scale = "default"
    clients: int = Field(default=50, ge=0)
    partition: Partition = Iid()
    reference: Amount = 0.1
    test: Amount = 0.1
    corruptions: tuple[Corruption, ...] = ()

    @field_validator("path")
    @classmethod
    def _anywhere(cls, path: Path | None) -> Path | None:
        """A run may be resumed from another folder."""
        return path and path.expanduser().absolute()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        total = sum(corruption.fraction for corruption in self.corruptions)
        if total > 1 + 1e-9:
            raise ValueError(f"the fractions of the corruptions sum to {total:g}; together they may be at most 1")
        if self.clients == 0 and not isinstance(self.partition, Natural):
            raise ValueError("clients = 0 (all owners) needs the partition natural; otherwise say how many clients")
        if self.reference == 0:
            raise ValueError("reference = 0 leaves nothing to evaluate on; give a number of rows or a share")
        return self
