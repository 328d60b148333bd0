"""Files that may be stored plain or gzipped."""

import gzip
import zlib
from pathlib import Path

from winnow.core import DataError


def stored(folder: Path, name: str) -> Path:
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
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
