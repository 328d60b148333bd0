"""winnow query SQL"""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.ask_owners import DeltaOption, EpsilonOption, FederationFile, FolderOption, OwnersOption, PersonKit
from winnow.cli.options import AsJson


def query(
    sql: Annotated[
        str | None, typer.Argument(metavar="SQL", help="A SELECT statement in DuckDB's dialect; or the word budget.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE.sql", help="Read it from a file.")] = None,
    federation: FederationFile = None,
    kit: PersonKit = None,
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    explained: Annotated[
        bool, typer.Option("--explain", help="Say what the owners would do, who would learn what, and its cost.")
    ] = False,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="A prompt for one statement after another.")
    ] = False,
    owners: OwnersOption = None,
    folder: FolderOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows to a .parquet or .csv file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a table whose rows several owners hold, in SQL.

    Groups of fewer rows than the owners' minimum are left out. `winnow query budget` shows what is left of your privacy
    budgets.
    """
    from winnow.analytics.sql.query_answer import check_ending
    from winnow.cli.query_statement import StatementOptions
    from winnow.core import ConfigError
    from winnow.runs.output_file import check_writable

    if out is not None:
        check_ending(out)
        check_writable(out, option="--out")
        if kit is None and out.exists():
            _refuse_table(out, federation)
    if sql is not None and sql.strip().lower() == "budget":
        from winnow.cli.query_budget import show_budgets

        show_budgets(federation, kit, as_json=as_json)
        return
    options = StatementOptions(
        federation=federation,
        kit=kit,
        owners=owners,
        epsilon=epsilon,
        delta=delta,
        explained=explained,
        folder=folder,
        out=out,
        as_json=as_json,
    )
    if interactive:
        from winnow.cli.query_prompt import declared_names, offered_tables, prompt

        if sql is not None or file is not None or folder is not None or out is not None:
            raise ConfigError("-i asks for statements; leave out SQL, --file, --folder and --out")
        prompt(options.respond, declared_names(federation) if kit is None else offered_tables(kit))
        return
    if (sql is None) == (file is None):
        raise ConfigError("give a statement, or a file with one: winnow query 'SELECT …' or winnow query -f FILE.sql")
    options.respond(sql if sql is not None else _read(file))


def _refuse_table(out: Path, federation: Path | None) -> None:
    """Refuse a file with rows that a federation file declares; what is wrong with the latter is said on asking."""
    from winnow.core import ConfigError, WinnowError
    from winnow.questions import FEDERATION_FILE

    tables = {}
    with suppress(WinnowError, ImportError):
        from winnow.analytics.tables.federation_file import load_federation

        tables = dict(load_federation(federation or Path(FEDERATION_FILE)).tables)
    for name, table in tables.items():
        if any(out.samefile(file) for file in table.files):
            raise ConfigError(f"--out {out}: this file holds the rows of table '{name}'; name another file")


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
