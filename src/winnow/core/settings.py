"""Settings are frozen, typed values: what a configuration file says is the object that does the work.

A `Choice` is a family of alternatives told apart by their `name`. Deriving a class adds a member, wherever that class
is written; a configuration chooses it by name, and Python code passes the instance.

    class Selector(Choice): ...
    class Uniform(Selector):
        name: Literal["uniform"] = "uniform"
        fraction: float = 0.1
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, SerializationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Settings(BaseModel):
    """A frozen group of settings that refuses keys it does not know, and types that are not meant: "3" is no number."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, table: Any) -> Any:
        """TOML has lists where settings have tuples, and NumPy's numbers are as good as Python's."""
        return {key: _plain(value) for key, value in table.items()} if isinstance(table, Mapping) else table


class Choice(Settings):
    """A family of alternatives. The direct child of `Choice` is the family, its descendants are the members."""

    members: ClassVar[dict[str, type["Choice"]]]
    unnamed: ClassVar[str | None] = None
    """The member that a table without a name means, if any."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if Choice in cls.__bases__:
            cls.members = {}
        elif "name" in cls.model_fields:
            cls.members[cls.model_fields["name"].default] = cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if "members" not in vars(cls):
            return handler(source)
        return core_schema.no_info_plain_validator_function(
            cls._choose, serialization=core_schema.plain_serializer_function_ser_schema(_dump, info_arg=True)
        )

    @classmethod
    def _choose(cls, value: Any) -> "Choice":
        """The member that a table names, looked up when it is read: later members count too."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, Mapping) and cls.unnamed is not None:
            value = {"name": cls.unnamed, **value}
        if not isinstance(value, Mapping) or "name" not in value:
            raise PydanticCustomError("unnamed_choice", "no name", {"valid": list(cls.members)})
        if not isinstance(value["name"], str) or value["name"] not in cls.members:
            raise PydanticCustomError("unknown_choice", "unknown name", {"valid": list(cls.members)})
        return cls.members[value["name"]].model_validate(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_plain(each) for each in value)
    return value.item() if isinstance(value, np.generic) else value


def _dump(part: Settings, info: SerializationInfo) -> dict[str, Any]:
    """A family's schema knows only the common fields; a member writes out its own."""
    return part.model_dump(mode=info.mode, exclude_none=info.exclude_none)
