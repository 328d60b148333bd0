"""A validation error as one line: the file, the key, what is wrong, and the nearest valid choice."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import ValidationError

from winnow.core import Choice, ConfigError, Settings, suggest

ONLY_WINNOW_WRITES = {"given"}
"""Names that no user can choose: a module passed in Python."""


def explain(error: ValidationError, source: str, schema: type[Settings], table: Mapping[str, Any]) -> ConfigError:
    """The first problem in full, and how many more there are."""
    problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
    line = f"{source}: {_problem(problems[0], schema, table)}"
    if len(problems) > 1:
        line += f" (and {len(problems) - 1} more)"
    return ConfigError(line)


def _problem(problem: Any, schema: type[Settings], table: Mapping[str, Any]) -> str:
    settings, path = _walk(schema, table, problem["loc"])
    key, kind, context, given = ".".join(path), problem["type"], problem.get("ctx", {}), problem["input"]
    if kind == "extra_forbidden":
        belongs = section_of(path[-1], schema) if len(path) == 1 else None
        if belongs is not None:
            return f"unknown key {key}; it belongs to [{belongs}]"
        return f"unknown key {key}; {suggest(path[-1], settings.model_fields if settings else ())}"
    if kind == "unknown_choice":
        name = given["name"] if isinstance(given, Mapping) else given
        return f"{key}.name = {name!r} is unknown; {suggest(str(name), _choosable(context))}"
    if kind == "unnamed_choice":
        return f"{key}.name is missing; valid: {', '.join(_choosable(context))}"
    if kind == "missing":
        return f"{key} is missing"
    if kind == "literal_error":
        return f"{key} = {given!r} is unknown; {suggest(str(given), _literals(settings, path))}"
    if kind == "value_error":
        return f"{key + ': ' if key else ''}{context['error']}"
    return f"{key} = {given!r}: {_lower(problem['msg'])}"


def _choosable(context: Mapping[str, Any]) -> list[str]:
    return [name for name in context["valid"] if name not in ONLY_WINNOW_WRITES]


def section_of(key: str, schema: type[Settings]) -> str | None:
    """The section that knows a key which was written outside of it."""
    for name, field in schema.model_fields.items():
        nested = _nested(field.annotation)
        kinds = nested.members.values() if nested and issubclass(nested, Choice) else [nested] if nested else []
        if any(key in kind.model_fields for kind in kinds):
            return name
    return None


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
        current = _nested(field.annotation) if field else None
        table = table.get(step) if isinstance(table, Mapping) else None
    return holder, path


def _chosen(settings: type[Settings] | None, table: Any) -> type[Settings] | None:
    """The member that a table names, where the settings are a family."""
    if settings is not None and issubclass(settings, Choice) and "members" in vars(settings):
        return settings.members.get(str(table.get("name", settings.unnamed))) if isinstance(table, Mapping) else None
    return settings


def _is_branch(step: str) -> bool:
    """Pydantic names the branches of a plain union (`int`, `constrained-float`); no key looks like that."""
    return step in {"int", "float", "str", "bool"} or step.startswith(("constrained", "tuple[", "list[", "function-"))


def _nested(annotation: Any) -> type[Settings] | None:
    """The settings class inside an annotation such as `Part`, `Part | None` or `tuple[Part, ...]`."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Settings):
            return candidate
    return None


def _literals(settings: type[Settings] | None, path: list[str]) -> list[str]:
    field = settings.model_fields.get(path[-1]) if settings else None
    values = get_args(field.annotation) if field else ()
    return [str(v) for value in values for v in (get_args(value) or (value,)) if v is not type(None)]


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]
