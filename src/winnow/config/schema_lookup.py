"""What the settings know of a key, whichever members of families are chosen."""

from collections.abc import Sequence
from typing import Any, get_args

from winnow.core import Choice, Settings


def settings_class(annotation: Any) -> type[Settings] | None:
    """The settings class inside an annotation such as `Part`, `Part | None` or `tuple[Part, ...]`."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Settings):
            return candidate
    return None


def settings_classes(annotation: Any) -> list[type[Settings]]:
    """The settings that an annotation admits: one class, or all members of a family."""
    found = settings_class(annotation)
    if found is None:
        return []
    return list(found.members.values()) if issubclass(found, Choice) else [found]


def section_with_key(key: str, schema: type[Settings]) -> str | None:
    """The section that knows a key which was written outside of it."""
    for name, field in schema.model_fields.items():
        if any(key in kind.model_fields for kind in settings_classes(field.annotation)):
            return name
    return None


def members_with_key(key: str, member: type[Settings] | None) -> list[str]:
    """The members of the same family that know a key."""
    if member is None or not issubclass(member, Choice):
        return []
    return [name for name, other in member.members.items() if key in other.model_fields]


def is_text_setting(path: Sequence[str], schema: type[Settings]) -> bool:
    """Whether the setting at a path is text in every member that has it."""
    groups = [schema]
    for key in path[:-1]:
        fields = [group.model_fields[key] for group in groups if key in group.model_fields]
        groups = [kind for field in fields for kind in settings_classes(field.annotation)]
    types = [group.model_fields[path[-1]].annotation for group in groups if path[-1] in group.model_fields]
    return bool(types) and all(kind in (str, str | None) for kind in types)
