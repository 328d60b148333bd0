"""Rows for the person who asks alone: a key that only this person's process has, and what it opens of an answer."""

import json
import math
from base64 import b64decode
from typing import Any

from winnow.analytics.question import Answer, Question
from winnow.core import RunError
from winnow.privacy.mixing.sealed_rows import open_row
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.key_agreement import KeyPair

FOLDER_HINT = "leave --folder out, and write them with --out FILE"


def with_reader(question: Question) -> tuple[Question, KeyPair | None]:
    """The question with a new key for whoever asks it, if it shows rows and has none yet."""
    if not question.shows_rows() or question.reader:
        return question, None
    key = KeyPair()
    return question.model_copy(update={"reader": key.public.hex()}), key


def opened_answer(answer: Answer, reader: KeyPair | None) -> Answer:
    """The answer with its rows; RunError if they are not for this key."""
    if reader is None:
        return answer
    try:
        boxes = [b64decode(box, validate=True) for box in answer["sealed"]]
        texts = [text for box in boxes if (text := open_row(reader, box)) is not None]
        rows = sorted((_row(text, len(answer["columns"])) for text in texts), key=lambda row: row[1])
    except (ProtocolError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise RunError("the answer's rows cannot be opened: they are not what owners sealed for you") from error
    told = {key: value for key, value in answer.items() if key != "sealed"}
    shown = [dict(zip(answer["columns"], cells, strict=True)) for cells, _ in rows]
    return {**told, "rows": shown, "errors": [{} for _ in shown]}


def _row(text: bytes, columns: int) -> tuple[list[Any], list[int]]:
    cells, ranks = json.loads(text)
    plain = all(each is None or isinstance(each, bool | int | float | str) for each in cells)
    if len(cells) != columns or not plain or not all(isinstance(each, int) for each in ranks):
        raise ValueError("a row of another form")
    for each in cells:
        if isinstance(each, str):
            each.encode()  # half a surrogate pair, which JSON can hold, is no text that can be written
        elif isinstance(each, float) and not math.isfinite(each):
            raise ValueError("a number that is not finite")
    return cells, ranks
