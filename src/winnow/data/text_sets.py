"""Sets of texts: sentences, reviews in folders, and what users wrote."""

import csv
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.file_formats import plain_or_gzipped, read_bytes
from winnow.data.types import RawDataSet

SST2_LAYOUTS = (("train.tsv", "dev.tsv"), ("sst2_train.tsv", "sst2_dev.tsv"))
IMDB_FOLDER_MARK = "imdb.vocab"
"""A file beside the official folders of reviews."""
IMDB_LAYOUTS = ((IMDB_FOLDER_MARK,), ("IMDB Dataset.csv",), ("imdb_first5000.csv",))
SENT140_LAYOUTS = (("sent140.json",), ("sent140_leaf_k30_test.json",))
SENTIMENTS = ("neg", "pos")
SPLITS = ("train", "test")
TWEET = 4
"""Where LEAF's records have the text, behind identifier, date, query and user."""


def as_texts(texts: list[str]) -> NDArray[Any]:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def read_sst2(folder: Path) -> RawDataSet:
    """Sentences of SST-2 with labels 0 and 1; GLUE's development set is the test split, for its test has no labels."""
    layouts = ([plain_or_gzipped(folder, name) for name in names] for names in SST2_LAYOUTS)
    files = next(paths for paths in layouts if all(path.is_file() for path in paths))
    splits = [_sentences(path) for path in files]
    texts = [text for sentences, _ in splits for text in sentences]
    labels = [label for _, found in splits for label in found]
    first = len(splits[0][0])
    return RawDataSet(
        x=as_texts(texts), y=np.array(labels, np.int64), classes=2, test_rows=np.arange(first, len(texts))
    )


def _sentences(path: Path) -> tuple[list[str], list[int]]:
    """The sentences and labels of a file with tabs between columns and a header, in either order."""
    rows = list(csv.reader(io.StringIO(_decoded(path)), delimiter="\t", quoting=csv.QUOTE_NONE))
    header = rows[0] if rows else []
    if sorted(header) not in (["label", "sentence"], ["content", "label"]):
        raise DataError(f"{path} needs the columns sentence and label; it has {', '.join(header)[:80] or 'none'}")
    label = header.index("label")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != 2 or row[label] not in ("0", "1"):
            raise DataError(f"{path}: data row {number} is not a sentence with the label 0 or 1; download it again")
    return [row[1 - label] for row in rows[1:]], [int(row[label]) for row in rows[1:]]


def read_imdb(folder: Path) -> RawDataSet:
    """Reviews as the official archive has them, a file each, or as a CSV file with review and sentiment."""
    if plain_or_gzipped(folder, IMDB_FOLDER_MARK).is_file():
        return read_text_folder(folder, SENTIMENTS)
    path = next(file for (name,) in IMDB_LAYOUTS[1:] if (file := plain_or_gzipped(folder, name)).is_file())
    csv.field_size_limit(sys.maxsize)  # csv's own limit is below the longest review
    rows = list(csv.reader(io.StringIO(_decoded(path))))
    if not rows or rows[0] != ["review", "sentiment"]:
        raise DataError(f"{path} needs the columns review and sentiment; download it again")
    kinds = {"negative": 0, "positive": 1}
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != 2 or row[1] not in kinds:
            raise DataError(
                f"{path}: data row {number} is not a review that is positive or negative; download it again"
            )
    texts, labels = [row[0] for row in rows[1:]], [kinds[row[1]] for row in rows[1:]]
    return RawDataSet(x=as_texts(texts), y=np.array(labels, np.int64), classes=2)


def read_text_folder(folder: Path, classes: tuple[str, ...] = ()) -> RawDataSet:
    """A folder for each class with a .txt file for each text; with folders train and test above them, the second is the
    test split. Folders beside the `classes` are left alone; without `classes`, all folders are classes.
    """
    splits = [folder / split for split in SPLITS if (folder / split).is_dir()] or [folder]
    known = classes or tuple(sorted({each.name for split in splits for each in split.iterdir() if each.is_dir()}))
    if len(known) < 2:
        raise DataError(f"{folder} has {len(known)} folders of texts; it must have one for each class, two or more")
    files = [
        (path, number, split)
        for split, inside in enumerate(splits)
        for number, name in enumerate(known)
        for path in sorted((inside / name).glob("*.txt"))
    ]
    if not files:
        raise DataError(f"{folder} holds no .txt files in the folders {', '.join(known)[:200]}")
    return RawDataSet(
        x=as_texts([_decoded(path) for path, _, _ in files]),
        y=np.array([known[number] for _, number, _ in files], object),
        classes=None,
        test_rows=np.flatnonzero([split for _, _, split in files]) if len(splits) == len(SPLITS) else None,
    )


def read_sent140(folder: Path) -> RawDataSet:
    """Tweets by user, in LEAF's format; every user is an owner."""
    path = next(file for (name,) in SENT140_LAYOUTS if (file := plain_or_gzipped(folder, name)).is_file())
    try:
        held = json.loads(_decoded(path))
        users, data = list(held["users"]), held["user_data"]
        tweets = [_tweets(data[user]) for user in users]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"{path} is not in LEAF's format (users, user_data): {error!r:.80}; download it again"
        ) from error
    return RawDataSet(
        x=as_texts([text for texts, _ in tweets for text in texts]),
        y=np.array([label for _, labels in tweets for label in labels], np.int64),
        classes=2,
        owners=np.repeat(np.arange(len(users)), [len(texts) for texts, _ in tweets]),
        owner_names=tuple(map(str, users)),
    )


def _tweets(held: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    texts, labels = [str(record[TWEET]) for record in held["x"]], [int(label) for label in held["y"]]
    if len(texts) != len(labels) or not set(labels) <= {0, 1}:
        raise ValueError("tweets and labels 0 and 1 do not match")
    return texts, labels


def _decoded(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; save it as UTF-8") from error
