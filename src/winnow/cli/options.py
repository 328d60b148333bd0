"""Arguments and options that several commands share, and how a shell completes them."""

import ast
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

PACKAGE = Path(__file__).parents[1]


def preset_names() -> list[str]:
    """Read off the files: a shell that completes a word cannot wait for torch."""
    return sorted(file.stem for file in (PACKAGE / "experiment" / "presets").glob("*.toml"))


def algorithm_names() -> list[str]:
    """Read off the sources, for the same reason."""
    files = (PACKAGE / "learn" / "algorithms").glob("*.py")
    return sorted(name for file in files for name in _recipe_names(file))


def _recipe_names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Recipe":
            yield from (ast.literal_eval(word.value) for word in node.keywords if word.arg == "name")


def complete_source(incomplete: str) -> list[str]:
    folder, _, start = incomplete.rpartition("/")
    beside = sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).glob(f"{escape(start)}*"))
    files = [path.as_posix() for path in beside if path.is_dir() or path.suffix == ".toml"]
    return [name for name in preset_names() if name.startswith(incomplete)] + files


def complete_algorithm(incomplete: str) -> list[str]:
    return [name for name in algorithm_names() if name.startswith(incomplete)]


def complete_algorithms(incomplete: str) -> list[str]:
    """The last word of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in complete_algorithm(last)]


Source: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PRESET_OR_FILE",
        help="A preset (see [bold]winnow presets[/bold]) or a .toml file.",
        autocompletion=complete_source,
        show_default=False,
    ),
]
Sets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a setting; may be repeated.", show_default=False),
]
Plugins: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Run a Python file of yours that defines an algorithm or other parts; may be repeated.",
        show_default=False,
    ),
]
Rounds: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="How many rounds.", min=1, show_default=False)]
DataFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Where data sets are; else $WINNOW_DATA and the cache folder.",
        exists=True,
        file_okay=False,
        show_default=False,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
