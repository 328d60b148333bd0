"""Help names the value of an option by its metavar; what its type is called in Python helps nobody."""

from typing import Any

from typer.core import TyperArgument, TyperOption


def _metavar(self: TyperOption, ctx: Any) -> str | None:
    return self.metavar


def _nothing(self: TyperArgument, ctx: Any) -> None: ...


def hide_python_types() -> None:
    """No `<bool>` beside a flag, no `<list[str]>` beside an argument; a test holds every other option to a metavar."""
    TyperOption.display_type_rich = _metavar  # type: ignore[method-assign]
    TyperArgument.display_type_rich = _nothing  # type: ignore[method-assign, assignment]
