"""Text as identifiers of words under a public vocabulary, or of characters, which a frozen encoder reads.

A vocabulary made of clients' texts would tell which words they hold, so none is made: a word's identifier is its hash,
which everybody can compute and which says nothing of anybody's data. Words may share one. A character's identifier is
its Unicode number, so the text can be read back.
"""

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import DataError, Settings

PADDING = 0
"""The identifier of no word, which fills texts up behind their last."""
MAX_WORDS, MAX_LENGTH = 1 << 24, 1 << 14
"""What a file may state at most: it may come from anybody."""
TextUnit: TypeAlias = Literal["words", "characters"]

_MARKUP = re.compile(r"<[^<>]{0,80}>")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[!?]")


class TextSettings(Settings):
    """How texts become identifiers: the first `length` words of each, hashed into so many `words`, or characters."""

    unit: TextUnit = "words"
    words: int = Field(default=20_000, ge=2, le=MAX_WORDS)
    length: int = Field(default=64, ge=1, le=MAX_LENGTH)


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, and its exclamation and question marks; markup such as <br /> is dropped."""
    return _WORD.findall(_MARKUP.sub(" ", text).lower())


@lru_cache(maxsize=1 << 18)
def word_identifier(word: str, words: int) -> int:
    """1 + hash mod (words − 1): never that of padding."""
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % (words - 1)


def encode_texts(texts: Sequence[Any] | NDArray[Any], words: int, length: int, where: str) -> NDArray[np.int64]:
    """[n, length] identifiers; a missing text has no words."""
    found = np.full((len(texts), length), PADDING, np.int64)
    for row, text in enumerate(texts):
        if text is None:
            continue
        if not isinstance(text, str):
            raise DataError(f"{where}, data row {row + 1} holds {text!r:.40}, not a text; leave it out of features")
        ids = [word_identifier(word, words) for word in words_of(text)[:length]]
        found[row, : len(ids)] = ids
    return found


def encode_characters(texts: Sequence[Any] | NDArray[Any], length: int, where: str) -> NDArray[np.int64]:
    """[n, length] Unicode numbers, 0 behind a text's end; a missing text has no characters."""
    found = np.full((len(texts), length), PADDING, np.int64)
    for row, text in enumerate(texts):
        if text is None:
            continue
        if not isinstance(text, str):
            raise DataError(f"{where}, data row {row + 1} holds {text!r:.40}, not a text; leave it out of features")
        numbers = [ord(character) for character in text[:length]]
        found[row, : len(numbers)] = numbers
    return found


def decode_characters(rows: NDArray[Any]) -> list[str]:
    """The texts whose characters have these numbers; what is no character's number is refused."""
    wrong = (rows < 0) | (rows > sys.maxunicode) | ((rows >= 0xD800) & (rows <= 0xDFFF))
    if wrong.any():
        raise DataError(f"texts: {int(rows[wrong][0])} is not a character's number; set data.text.unit = 'characters'")
    return ["".join(map(chr, row[row != PADDING].tolist())) for row in rows]
