"""winnow query -i: statements one after another, with a history and completion of tables and columns."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

PROMPT, CONTINUED = "winnow> ", "   ...> "
SECONDS_FOR_NAMES = 2.0
"""After which the prompt comes without them; the first statement says that no server answers."""
HELP = "A statement ends with a semicolon. Tab completes names, EXPLAIN in front asks nobody, exit or Ctrl-D leaves."
WORDS = ("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "COUNT(*)", "SUM(", "AVG(", "EXPLAIN")


def prompt(respond: Callable[[str], None], names: Sequence[str]) -> None:
    """Ask for statements, which end with a semicolon, until the input ends; a mistake costs one line, and Ctrl-C the
    present statement. Tab completes `names`.
    """
    import typer

    from winnow.cli.console import say
    from winnow.core import WinnowError

    _complete(names)
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


def declared_names(federation: Path | None) -> list[str]:
    """Tables and columns of a federation file, as far as it can be read: the first statement says what is wrong."""
    from winnow.core import WinnowError
    from winnow.questions import FEDERATION_FILE

    with suppress(WinnowError, ImportError):
        from winnow.analytics.tables.federation_file import load_federation

        tables = load_federation(federation or Path(FEDERATION_FILE)).tables
        return sorted({*tables, *(column for table in tables.values() for column in table.declaration.columns)})
    return []


def offered_tables(kit: Path) -> list[str]:
    """The tables that sites of a federation offer, as far as its server tells this person soon; it tells no columns.
    What it sends are names of letters, digits and few marks (`messages.Name`), which change nothing in a terminal.
    """
    from winnow.core import WinnowError

    with suppress(WinnowError, ImportError):
        from winnow.deploy.client.connection import connect

        with connect(kit, retry_seconds=SECONDS_FOR_NAMES) as connection:
            return sorted({name for site in connection.sites() if not site.revoked for name in site.data})
    return []


def _complete(names: Sequence[str]) -> None:
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
