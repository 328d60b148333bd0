"""Files of finished runs, a line each, which a repeated command goes on with."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


def read_kept(file: Path, fields: set[str], refuse: Callable[[str], NoReturn]) -> list[dict[str, Any]]:
    """The runs so far, which have these fields. A file of something else is refused before it is written to."""
    try:
        records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    except (OSError, ValueError) as error:
        refuse(f"--out {file} does not hold runs of this command ({error}); name another file")
    if not all(isinstance(record, dict) and fields <= record.keys() for record in records):
        refuse(f"--out {file} does not hold runs of this command; name another file")
    return records
