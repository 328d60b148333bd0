"""What is wrong with a policy, as one line: the key, what it holds, and the nearest valid word."""

import re
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from winnow.core import suggest
from winnow.core.literal_words import literal_words

RENAMED_KEYS = {"control": "remote_control", "of": "scope"}


def policy_error_text(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """In our words, where a key or a word is unknown; msgspec's otherwise."""
    message, _, place = str(error).partition(" - at `$")
    key = place.removesuffix("`").removeprefix(".")
    found = _type_at(kind, re.findall(r"\w+", re.sub(r"\[.*?\]", "", key)))
    if unknown := re.search("unknown field `(.*?)`", message):
        return _unknown_key(f"{key}.{unknown[1]}".removeprefix("."), unknown[1], _fields(found))
    if unknown := re.search("Invalid enum value '(.*)'", message):
        return f"{key} = {unknown[1]!r} is unknown; {suggest(unknown[1], map(str, literal_words(found)))}"
    return f"invalid policy: {error}"


def _unknown_key(key: str, name: str, known: Iterable[str]) -> str:
    if name in RENAMED_KEYS:
        return f"the key {name} is now named {RENAMED_KEYS[name]}"
    return f"unknown key {key}; {suggest(name, known)}"


def _type_at(kind: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        kind = _fields(kind).get(key)
    return kind


def _fields(kind: Any) -> dict[str, Any]:
    """The keys of the table that a type is, or holds, and their types."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return {key: held for part in get_args(kind) for key, held in _fields(part).items()}
