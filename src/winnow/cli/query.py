"""winnow query SQL"""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from winnow.cli.ask_owners import FederationFile, FolderOption, OwnersOption, PersonKit
from winnow.cli.options import AsJson

EXPLAIN = re.compile(r"\s*explain\s+", re.IGNORECASE)


def query(
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL", help="A SELECT statement in DuckDB's dialect; or the word budget.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE.sql", help="Read it from a file.", show_default=False)
    ] = None,
    federation: FederationFile = None,
    kit: PersonKit = None,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="E", help="Answer with noise, differentially private at this ε.", show_default=False),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(metavar="D", help="The δ of --epsilon; default: 1e-6.", show_default=False)
    ] = None,
    explained: Annotated[
        bool, typer.Option("--explain", help="Say what the owners would do, who would learn what, and its cost.")
    ] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="A prompt for one statement after another.")
    ] = False,
    owners: OwnersOption = None,
    folder: FolderOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the rows to a .parquet or .csv file.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a table whose rows several owners hold, in SQL.

    Groups of fewer rows than the owners' minimum are left out. `winnow query budget` shows what is left of your privacy
    budgets.
    """
    from winnow.analytics.sql.query_answer import check_ending
    from winnow.cli.ask_owners import check_folder
    from winnow.core import ConfigError

    if out is not None:
        check_ending(out)
        check_folder(out)

    def respond(statement: str) -> None:
        prefix = EXPLAIN.match(statement)
        plain = statement[prefix.end() :] if prefix else statement
        if prefix or explained:
            _explain(plain, federation, kit, owners, epsilon)
            return
        given = {"kind": "query", "sql": plain, "epsilon": epsilon, "delta": delta}
        _answer(given, federation, kit, owners, folder, out, as_json=as_json)

    if sql is not None and sql.strip().lower() == "budget":
        from winnow.cli.query_budget import show_budgets

        show_budgets(federation, kit, as_json=as_json)
        return
    if interactive:
        from winnow.cli.query_prompt import prompt

        if sql is not None or file is not None or folder is not None or out is not None:
            raise ConfigError("-i asks for statements; leave out SQL, --file, --folder and --out")
        prompt(respond, federation if kit is None else None)
        return
    if (sql is None) == (file is None):
        raise ConfigError("give a statement, or a file with one: winnow query 'SELECT …' or winnow query -f FILE.sql")
    respond(sql if sql is not None else _read(file))


def _read(file: Path | None) -> str:
    from winnow.analytics.sql.query_question import MAX_SQL
    from winnow.core import ConfigError

    assert file is not None
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(MAX_SQL + 1)  # and not all of what may have no end
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text in UTF-8") from error
    if len(text) > MAX_SQL:
        raise ConfigError(f"{file} is longer than the {MAX_SQL:,} letters that a statement may have")
    return text


def _explain(sql: str, federation: Path | None, kit: Path | None, owners: str | None, epsilon: float | None) -> None:
    from winnow import questions
    from winnow.cli.ask_owners import names
    from winnow.cli.console import answer

    explained = questions.explain_statement(sql, federation, kit=kit, owners=names(owners), epsilon=epsilon)
    for line in explained.splitlines():
        answer(line)


def _answer(
    given: dict[str, Any],
    federation: Path | None,
    kit: Path | None,
    owners: str | None,
    folder: Path | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    from time import monotonic

    from winnow.analytics.question import read_question
    from winnow.analytics.sql.answer_table import answer_table
    from winnow.analytics.sql.query_answer import QueryAnswer
    from winnow.cli.ask_owners import CountedSteps, ask
    from winnow.cli.console import say, stdout_console, write_json

    question, begun = read_question({key: value for key, value in given.items() if value is not None}), monotonic()
    counted = CountedSteps()
    asked = ask(question, federation=federation, kit=kit, owners=owners, folder=folder, on_event=counted.add)
    found = QueryAnswer(asked)
    if out is not None:
        found.write(out)
        say(f"{len(found.rows):,} rows: {out}")
    if as_json:
        write_json(found.answer)
    elif out is None:
        stdout_console().print(answer_table(found))
    for line in found.notes():
        say(line)
    say(f"{len(found.answer['owners'])} owners, {counted.text(monotonic() - begun)}.")
