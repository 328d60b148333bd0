"""Files of the user's own, told apart by how their names end, and files that may be stored plain or gzipped."""

import gzip
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.core.errors import first_line
from winnow.core.untrusted_text import one_line

OWN_FILE_TYPES = (".npz", ".csv", ".csv.gz", ".parquet")
"""The kinds of files that a user's own data may be in."""
DAMAGED_NPZ = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,  # encrypted
    SyntaxError,  # a header that is no Python
    tokenize.TokenError,
    zlib.error,
    zipfile.BadZipFile,
)
MOST_SHOWN, NAMES_LISTED = 40, 8
"""So much of a name, and so many names, a message quotes."""
ROW_ARRAYS = ("x", "y", "owners", "keys")
"""What an .npz file with rows may hold; not every command has a use for all of them."""


def own_file_type(path: Path) -> str | None:
    """Which of these kinds the file is of, if any."""
    return next((kind for kind in OWN_FILE_TYPES if path.name.lower().endswith(kind)), None)


def name_from_file(path: Path) -> str:
    """What data in this file are called: its name without the kind."""
    kind = own_file_type(path)
    return path.name[: -len(kind)] if kind else path.stem


def plain_or_gzipped(folder: Path, name: str) -> Path:
    """The file of that name, gzipped or not."""
    zipped = folder / f"{name}.gz"
    return zipped if zipped.is_file() else folder / name


def read_bytes(path: Path) -> bytes:
    """The whole content, decompressed where the name ends in .gz."""
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is a truncated or damaged gzip file ({error}); download it again") from error


def read_npz(
    path: Path, wanted: Sequence[str], also: Sequence[str] = (), *, known: Sequence[str] = ROW_ARRAYS
) -> dict[str, NDArray[Any]]:
    """The wanted arrays of an .npz file, and of the others those that it has. It may hold `known` ones alone."""
    with (
        npz_errors(path),
        zipfile.ZipFile(path) as archive,
        np.load(path, allow_pickle=False) as arrays,
    ):
        names = array_names(path, archive)
        for key in wanted:
            if key not in names:
                raise DataError(f"{path} has no array '{key}'; it holds {_listed(names)}")
        check_array_names(path, names, known)
        return {key: arrays[key] for key in (*wanted, *also) if key in names}


@contextmanager
def npz_errors(path: Path) -> Iterator[None]:
    """DataError for whatever zipfile and numpy say of a file that is damaged, or that was made to be."""
    try:
        yield
    except MemoryError as error:
        raise DataError(f"{path} has arrays that do not fit into memory") from error
    except DAMAGED_NPZ as error:
        raise DataError(f"{path} is not a readable .npz of plain arrays: {first_line(error)}") from error


def array_names(path: Path, archive: zipfile.ZipFile) -> list[str]:
    """What an .npz file holds; DataError for a name that appears twice, or for something that is no array."""
    held = Counter(archive.namelist())
    for name, times in held.items():
        if not name.endswith(".npy"):
            raise DataError(f"{path} holds {_shown(name)}, which is no array; write the file with numpy.savez")
        if times > 1:
            raise DataError(f"{path} holds {_shown(name)} twice; write the file with numpy.savez")
    return sorted(name.removesuffix(".npy") for name in held)


def check_array_names(path: Path, names: Iterable[str], known: Sequence[str] = ROW_ARRAYS) -> None:
    """Refuse an array that nothing would be done with: a misspelt one would be missed without a word."""
    for name in names:
        if name not in known:
            meant = "".join(f"did you mean '{near}'? " for near in get_close_matches(name[:MOST_SHOWN], known, n=1))
            raise DataError(
                f"{path} holds an array {_shown(name)}, which would be ignored; {meant}Winnow knows {', '.join(known)};"
                " rename the array, or leave it out"
            )


def _shown(name: str) -> str:
    """Names come from whoever wrote the file."""
    return f"'{one_line(name)[:MOST_SHOWN]}'"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(one_line(name)[:MOST_SHOWN] for name in names[:NAMES_LISTED])
    return f"{shown} and {len(names) - NAMES_LISTED:,} more" if len(names) > NAMES_LISTED else shown or "nothing"
