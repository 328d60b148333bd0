"""winnow algorithms"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from winnow.cli.options import AsJson, Plugins, builtin_algorithms, complete_source

if TYPE_CHECKING:
    from winnow.config.algorithm_variants import NamedAlgorithm


def algorithms(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="PRESET_OR_FILE",
            help="Also list the variants and plugins of this preset or .toml file.",
            autocompletion=complete_source,
        ),
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List the named algorithms."""
    from winnow.cli.console import stdout_console, write_json
    from winnow.terminal_tables import table

    if source is None and not plugins and not as_json:  # what ships with Winnow is told without waiting for torch
        lines = list(builtin_algorithms().items())
    else:
        from winnow.config.resolve import known_algorithms

        known = sorted(known_algorithms({} if source is None else source, plugins or ()).items())
        if as_json:
            write_json([_record(name, each) for name, each in known])
            return
        lines = [(name, _summary(each)) for name, each in known]
    stdout_console().print(table(("Algorithm", "What it is"), lines, numbers=False))


def _record(name: str, each: "NamedAlgorithm") -> dict[str, Any]:
    variant = {} if each.base is None else {"base": each.base, "changes": dict(_settings(each.overlays[-1]))}
    return {"name": name, "summary": _summary(each), "parts": each.recipe.table(), **variant}


def _summary(each: "NamedAlgorithm") -> str:
    """A variant is told by what it changes about its base."""
    if each.base is None:
        return each.recipe.summary
    changes = ", ".join(f"{key} = {value}" for key, value in _settings(each.overlays[-1]))
    return f"{each.base} with {changes}" if changes else f"same as {each.base}"


def _settings(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a table by their paths."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
