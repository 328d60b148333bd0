"""A validation error as one line: the file, the key, what is wrong, and the nearest valid choice."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from winnow.config.renamed_settings import CHOICES, KEYS, now_called, renamed
from winnow.config.schema_lookup import members_with_key, section_with_key, settings_class
from winnow.core import Choice, ConfigError, Settings, suggest
from winnow.core.literal_words import literal_words

INTERNAL_CHOICES = {"in-memory"}
"""Names that no user can choose: a module passed in Python."""

CONSTRAINT_MESSAGES = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "finite_number": "must be a finite number",
    "tuple_type": "must be a list",
    "string_type": "must be text, in quotes",
    "string_too_short": "must not be empty",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
}
"""What pydantic finds wrong with a value, in our words."""


def config_error(error: ValidationError, source: str, schema: type[Settings], table: Mapping[str, Any]) -> ConfigError:
    """All problems, unknown keys first; of a key that may hold one of several types, what the first one says."""
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    by_key: dict[str, str] = {}
    for problem in problems:
        key = ".".join(_walk(schema, table, problem["loc"])[1])
        by_key.setdefault(key, _problem(problem, schema, table))
    return ConfigError(f"{source}: {'; '.join(by_key.values())}")


def _problem(problem: Any, schema: type[Settings], table: Mapping[str, Any]) -> str:
    settings, path = _walk(schema, table, problem["loc"])
    key, kind, context, given = ".".join(path), problem["type"], problem.get("ctx", {}), problem["input"]
    if kind == "extra_forbidden":
        if (new := renamed(path, KEYS)) is not None:
            return now_called(path, new)
        return f"unknown key {key}; {_known_elsewhere(path, settings, schema)}"
    if kind == "unknown_choice":
        name = given["name"] if isinstance(given, Mapping) else given
        if (new := renamed([*path, str(name)], CHOICES)) is not None:
            return f"{key}.name = {name!r} is now {new!r}"
        return f"{key}.name = {name!r} is unknown; {suggest(str(name), _choosable(context))}"
    if kind == "unnamed_choice":
        return f"{key}.name is missing; valid: {', '.join(_choosable(context))}"
    if kind == "missing":
        return f"{key} is missing{_described(settings, path)}"
    if kind == "literal_error":
        return f"{key} = {given!r} is unknown; {_instead(given, _literals(settings, path))}"
    if kind == "value_error":
        return f"{key + ': ' if key else ''}{context['error']}"
    wrong = (
        CONSTRAINT_MESSAGES[kind].format(**_plain(context)) if kind in CONSTRAINT_MESSAGES else _lower(problem["msg"])
    )
    return f"{key} = {given!r}: {wrong}{_example(settings, path) if kind == 'tuple_type' else ''}"


def _known_elsewhere(path: list[str], settings: type[Settings] | None, schema: type[Settings]) -> str:
    """Where a key belongs that is unknown where it was written, or what is known there."""
    key, holders = path[-1], members_with_key(path[-1], settings)
    if len(path) == 1 and (section := section_with_key(key, schema)) is not None:
        return f"it belongs in section [{section}]"
    if holders:
        return f"it belongs to {'.'.join([*path[:-1], 'name'])} = {' or '.join(map(repr, holders))}"
    return suggest(key, settings.model_fields if settings else ())


def _choosable(context: Mapping[str, Any]) -> list[str]:
    return [name for name in context["valid"] if name not in INTERNAL_CHOICES]


def _walk(
    schema: type[Settings], table: Any, location: tuple[int | str, ...]
) -> tuple[type[Settings] | None, list[str]]:
    """The group of settings that holds the faulty key, and the key as a user writes it."""
    holder: type[Settings] | None = None
    current: type[Settings] | None = schema
    path: list[str] = []
    for step in location:
        if isinstance(step, int):
            path[-1] += f"[{step}]"
            table = table[step] if isinstance(table, list | tuple) and step < len(table) else None
            continue
        if _is_branch(step):
            continue
        path.append(step)
        holder = _chosen(current, table)
        field = holder.model_fields.get(step) if holder else None
        current = settings_class(field.annotation) if field else None
        table = table.get(step) if isinstance(table, Mapping) else None
    return holder, path


def _chosen(settings: type[Settings] | None, table: Any) -> type[Settings] | None:
    """The member that a table names, where the settings are a family."""
    if settings is None or not issubclass(settings, Choice) or "members" not in vars(settings):
        return settings
    if isinstance(table, str):  # a name alone
        return settings.members.get(table)
    return settings.members.get(str(table.get("name", settings.unnamed))) if isinstance(table, Mapping) else None


def _is_branch(step: str) -> bool:
    """Pydantic names the branches of a plain union (`int`, `constrained-float`); no key looks like that."""
    return step in {"int", "float", "str", "bool"} or step.startswith(("constrained", "tuple[", "list[", "function-"))


def _literals(settings: type[Settings] | None, path: list[str]) -> list[str | int]:
    """The words or numbers that a setting, or one of a list in it, may be."""
    field = settings.model_fields.get(path[-1].partition("[")[0]) if settings else None
    return literal_words(field.annotation) if field else []


def _instead(given: Any, choices: list[str | int]) -> str:
    numbers = sorted(choice for choice in choices if isinstance(choice, int))
    if len(numbers) == len(choices):
        return f"valid: {', '.join(map(str, numbers))}"
    return suggest(str(given), map(str, choices))


def _described(settings: type[Settings] | None, path: list[str]) -> str:
    """What a setting is that has no default, where the setting itself says it."""
    field = settings.model_fields.get(path[-1]) if settings else None
    return f": {field.description}" if field and field.description else ""


def _example(settings: type[Settings] | None, path: list[str]) -> str:
    """What such a list looks like, by the setting's own default."""
    field = settings.model_fields.get(path[-1]) if settings else None
    usual = field.default if field else ()
    plain = isinstance(usual, tuple) and all(isinstance(value, int | float | str) for value in usual)
    return f", such as {list(usual)}" if plain and usual else ", in brackets: […]"


def _plain(limits: Mapping[str, Any]) -> dict[str, str]:
    return {name: f"{limit:g}" if isinstance(limit, float) else str(limit) for name, limit in limits.items()}


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
