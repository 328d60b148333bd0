"""PACS (Li et al., 2017): seven classes of pictures in four styles, which are the owners."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.types import RawDataSet

LAYOUTS = (("pacs_64px_webp.tar.gz",), ("PACS.tar.gz",), ("pacs.tar",))
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SIDE = 64
MAX_FILE = 1 << 22
"""No picture of the set is larger."""
PICTURES = (".jpg", ".png", ".webp")


def read_pacs(folder: Path) -> RawDataSet:
    """Pictures of 64 × 64 in colour, in an archive with a folder for each domain and in it one for each class."""
    path = next(file for (name,) in LAYOUTS if (file := folder / name).is_file())
    pictures, labels, owners = [], [], []
    for domain, kind, content in _members(path):
        pictures.append(_picture(content, path))
        labels.append(CLASSES.index(kind))
        owners.append(DOMAINS.index(domain))
    if not pictures:
        raise DataError(f"{path} holds no pictures in folders such as {DOMAINS[0]}/{CLASSES[0]}; download it again")
    return RawDataSet(
        x=np.stack(pictures),
        y=np.array(labels, np.int64),
        classes=len(CLASSES),
        owners=np.array(owners, np.int64),
        owner_names=DOMAINS,
    )


def _members(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """Domain, class and content of each picture; nothing is unpacked to disk."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                *_, domain, kind, name = ("", "", *member.name.split("/"))
                known = domain in DOMAINS and kind in CLASSES and name.lower().endswith(PICTURES)
                if known and member.isfile() and member.size <= MAX_FILE:
                    file = archive.extractfile(member)
                    assert file is not None
                    yield domain, kind, file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"{path} is a truncated or damaged archive ({error}); download it again") from error


def _picture(content: bytes, path: Path) -> NDArray[np.uint8]:
    """[3, 64, 64]"""
    try:
        from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - Pillow is an extra
    except ImportError as error:
        raise DataError('pictures are read by Pillow, which is not installed: pip install ".[images]"') from error
    try:
        with Image.open(io.BytesIO(content)) as image:
            small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} holds a picture that cannot be read ({error}); download it again") from error
    return np.asarray(small).transpose(2, 0, 1)
