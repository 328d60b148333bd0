"""winnow query budget: what a person may still spend on each table, at each owner."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow.analytics.question import Answer


def show_budgets(federation: Path | None, kit: Path | None, *, as_json: bool) -> None:
    """One row for each table and owner; a table whose owners tell nothing is one line on standard error."""
    from winnow.analytics.answers import answer_errors
    from winnow.analytics.budget_question import budget_text
    from winnow.cli.console import stdout_console, write_json
    from winnow.terminal_tables import table

    with answer_errors():
        told = [
            {"table": answer["table"], **each} for answer in _answers(federation, kit) for each in answer["budgets"]
        ]
        rows = [(each["table"], each["owner"], budget_text(each)) for each in told]
    if as_json:
        write_json(told)
    elif rows:
        stdout_console().print(table(("Table", "Owner", "ε left"), rows, numbers=False))


def _answers(federation: Path | None, kit: Path | None) -> "Iterator[Answer]":
    from winnow.analytics.budget_question import BudgetQuestion
    from winnow.analytics.query_extra import require_query_extra
    from winnow.cli.console import say
    from winnow.core import ConfigError, WinnowError
    from winnow.questions import FEDERATION_FILE

    if federation is not None and kit is not None:
        raise ConfigError("name a federation file or a kit, not both")
    if kit is None:
        require_query_extra()
        from winnow.analytics.simulate import ask_simulated
        from winnow.analytics.tables.federation_file import load_federation

        path = federation or Path(FEDERATION_FILE)
        say("simulated owners keep no account: every simulated question begins with all of it")
        for name in load_federation(path).tables:
            yield ask_simulated(BudgetQuestion(table=name), path)
        return
    from winnow.deploy.client.connection import connect

    with connect(kit, notify=say) as connection:
        offered = sorted({name for site in connection.sites() if not site.revoked for name in site.data})
        for name in offered:
            try:
                yield connection.ask(BudgetQuestion(table=name)).values
            except WinnowError as error:
                say(f"{name}: {error}")
