"""Arguments and options that several commands share, and how a shell completes them."""

import ast
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

PACKAGE = Path(__file__).parents[1]


def preset_names() -> list[str]:
    """Read off the files: a shell that completes a word cannot wait for torch."""
    return sorted(file.stem for file in (PACKAGE / "config" / "presets").glob("*.toml"))


def builtin_algorithms() -> dict[str, str]:
    """The named algorithms and what each is, read off the sources for the same reason."""
    files = (PACKAGE / "learn" / "algorithms").glob("*.py")
    return dict(sorted(recipe for file in files for recipe in _recipes(file)))


def _recipes(file: Path) -> Iterator[tuple[str, str]]:
    """The names and summaries of the recipes that a file defines."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Call) and "Recipe" in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            words = {word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)}
            if "name" in words:
                yield str(words["name"]), str(words.get("summary", ""))


def _own_names(typed: typer.Context) -> Iterator[str]:
    """Variants of the file that has been typed, and what its plugins and those typed define; faults are not told.

    An option without its value, which is what is being completed, leaves arguments unread.
    """
    file = Path(typed.params.get("source") or next(iter(typed.args), ""))
    plugins = [Path(plugin) for plugin in typed.params.get("plugins") or ()]
    with suppress(OSError, ValueError, SyntaxError):
        table = tomllib.loads(file.read_text("utf-8")) if file.suffix == ".toml" else {}
        plugins += [file.parent / plugin for plugin in table.get("plugins", ())]
        yield from (*table.get("algorithms", ()), *([table["algorithm"]] if "base" in table else []))
    for plugin in plugins:
        with suppress(OSError, ValueError, SyntaxError):
            yield from (name for name, _ in _recipes(plugin))


def complete_source(incomplete: str) -> list[str]:
    folder, _, start = incomplete.rpartition("/")
    beside = sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).glob(f"{escape(start)}*"))
    files = [path.as_posix() for path in beside if path.is_dir() or path.suffix == ".toml"]
    return [name for name in preset_names() if name.startswith(incomplete)] + files


def complete_algorithm(context: typer.Context, incomplete: str) -> list[str]:
    names = {*builtin_algorithms(), *_own_names(context)}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_algorithms(context: typer.Context, incomplete: str) -> list[str]:
    """The last word of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in complete_algorithm(context, last)]


def number_option(text: str) -> typer.models.OptionInfo:
    """A number that a question leaves to its own default, which the text tells."""
    option: typer.models.OptionInfo = typer.Option(metavar="NUMBER", help=text)
    return option


Source: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PRESET_OR_FILE",
        help="A preset (see [bold]winnow presets[/bold]), a .toml file, or your data: a .csv, .parquet or .npz file.",
        autocompletion=complete_source,
    ),
]
AlgorithmName: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME",
        help="The algorithm; default: the file's.",
        autocompletion=complete_algorithm,
    ),
]
Seed: TypeAlias = Annotated[int | None, typer.Option("--seed", metavar="N", help="The seed of all randomness.", min=0)]
Sets: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY.PATH=VALUE", help="Change a setting; may be repeated.")
]
Targets: TypeAlias = Annotated[
    str | None, typer.Option("--targets", metavar="COLUMN,…", help="The columns to predict, for your own table.")
]
Plugins: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="Load a Python file that defines algorithms or other parts; may be repeated.",
    ),
]
Rounds: TypeAlias = Annotated[int | None, typer.Option(metavar="N", help="The number of rounds.", min=1)]
DataFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The folder with the data sets; default: $WINNOW_DATA, then the cache folder.",
        exists=True,
        file_okay=False,
    ),
]
Workers: TypeAlias = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="The number of parallel runs; default: one per core.", min=1),
]
ModelFolder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The folder of a finished run, or of a saved model.")
]
Factory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION", help="Build the model by your own function, as in the run; this executes the file."
    ),
]
Encoder: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION", help="The frozen encoder of your own that the run had; this executes the file."
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]
