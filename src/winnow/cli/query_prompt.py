"""winnow query -i: statements one after another, with a history and completion of tables and columns."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PROMPT, CONTINUED = "winnow> ", "   ...> "
HELP = "A statement ends with a semicolon. Tab completes names, EXPLAIN in front asks nobody, exit or Ctrl-D leaves."
WORDS = ("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "COUNT(*)", "SUM(", "AVG(", "EXPLAIN")


def prompt(respond: Callable[[str], None], federation: Path | None) -> None:
    """Ask for statements, which end with a semicolon, until the input ends; a mistake costs one line, and Ctrl-C the
    present statement.
    """
    import typer

    from winnow.cli.console import say
    from winnow.core import WinnowError

    _complete(_names(federation))
    say(HELP)
    while (statement := _statement()) is not None:
        try:
            respond(statement)
        except WinnowError as error:
            say(f"winnow: {error}")
        except typer.Exit:  # Ctrl-C, of which a line was said
            continue


def _statement() -> str | None:
    """The next statement without its semicolon; None at the end of the input."""
    from winnow.cli.console import say

    lines: list[str] = []
    while True:
        try:
            line = input(CONTINUED if lines else PROMPT)
        except EOFError:
            return None
        except KeyboardInterrupt:
            lines.clear()
            say("")  # the next prompt begins a line of its own
            continue
        word = line.strip().rstrip(";").lower()
        if not lines and word in ("exit", "quit"):
            return None
        if not lines and word in ("", "help", "?"):
            if word:
                say(HELP)
            continue
        lines.append(line)
        if line.rstrip().endswith(";"):
            return "\n".join(lines).rstrip().rstrip(";")


def _names(federation: Path | None) -> list[str]:
    """Tables and columns of a federation file, as far as it can be read: the first statement says what is wrong."""
    from winnow.core import WinnowError
    from winnow.questions import FEDERATION_FILE

    with suppress(WinnowError, ImportError):
        from winnow.analytics.tables.federation_file import load_federation

        tables = load_federation(federation or Path(FEDERATION_FILE)).tables
        return sorted({*tables, *(column for table in tables.values() for column in table.declaration.columns)})
    return []


def _complete(names: list[str]) -> None:
    """Tab completes a word; arrow keys go through the history of this session."""
    try:
        import readline
    except ImportError:  # not on every system
        return

    def completed(text: str, state: int) -> str | None:
        found = [each for each in (*names, *WORDS) if each.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None

    readline.set_completer(completed)
    readline.set_completer_delims(" \t\n,();=<>")
    readline.parse_and_bind("tab: complete")
