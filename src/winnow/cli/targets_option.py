"""A user's own table in the place of a configuration: which columns are to be predicted, and which names the owner?"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from winnow.core import ConfigError
from winnow.data.file_formats import own_file_type
from winnow.data.tables import open_table

TARGETS = "data.targets"
COLUMNS_SHOWN = 12


def with_targets(sets: Sequence[str], targets: str | None, command: str, source: str) -> tuple[str, ...]:
    """The settings of the command line with those of --targets; a table without either is refused."""
    if targets is not None:
        return (*sets, f"{TARGETS}={json.dumps(targets.split(','), ensure_ascii=False)}")
    is_table = own_file_type(Path(source)) not in (None, ".npz")
    if not is_table or TARGETS in {each.partition("=")[0].strip() for each in sets}:
        return tuple(sets)
    if not Path(source).is_file():
        raise ConfigError(f"{source}: no such file")
    columns = open_table(Path(source)).columns
    shown = ", ".join([*columns[:COLUMNS_SHOWN], *(["…"] if len(columns) > COLUMNS_SHOWN else [])])
    example = f"winnow {command} {shlex.quote(source)} --targets {shlex.quote(columns[-1])}"
    raise ConfigError(f"{source}: name the column to predict, for example: {example} (columns: {shown})")
