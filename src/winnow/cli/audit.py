"""winnow audit verify LOG, winnow audit show LOG"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from winnow.cli.federation.extra import needs_deploy
from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from winnow.deploy.trust.audit import AuditStore

audit = typer.Typer(
    help="Read and check audit logs.",
    epilog="[bold]Examples[/bold]\n\nwinnow audit verify kits/plant-a\n\nwinnow audit show audit.jsonl --json",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Log: TypeAlias = Annotated[
    Path, typer.Argument(metavar="LOG", help="The kit of a site or server, or an audit.jsonl.", show_default=False)
]


@audit.command("verify")
@needs_deploy
def verify_log(
    log: Log,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The project's ca.pem; else the one beside the log.", show_default=False),
    ] = None,
) -> None:
    """Find any entry that was changed, deleted, inserted or cut off."""
    from winnow.cli.console import say
    from winnow.deploy.trust.audit import problems

    authority = _authority(log, ca)
    with _opened(log) as store:
        head, found = store.head(), problems(store, authority)
    if authority is None:
        say("winnow: warning: whose log it is was not checked; give the project's ca.pem with --ca")
    for problem in found:
        typer.echo(problem)
    if found:
        raise typer.Exit(1)
    typer.echo(f"{log}: {head.seq if head else 0} entries, none changed")


@audit.command("show")
@needs_deploy
def show_log(
    log: Log,
    last: Annotated[int, typer.Option(metavar="N", help="The last N entries.", min=1)] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the last entries of a log, without checking them."""
    from collections import deque

    from winnow.cli.console import answers
    from winnow.deploy.trust.chain import Entry
    from winnow.experiment.terminal import table

    with _opened(log) as store:
        lines = deque(store.lines(), maxlen=last)
    if as_json:
        for line in lines:
            typer.echo(line.decode(errors="replace"))
        return
    entries = [entry for line in lines if (entry := Entry.of(line)) is not None]
    rows = [(str(e.seq), e.time[:19], f"{e.who}, {e.organisation}", e.what, e.target, e.outcome) for e in entries]
    answers().print(table(("No.", "Time (UTC)", "Who", "What", "Target", "Outcome"), rows, numbers=False))


@contextmanager
def _opened(log: Path) -> "Iterator[AuditStore]":
    """A log is a file in the kit, or, of servers that share a database, a table."""
    from winnow.deploy.trust.audit_file import AUDIT_FILE, FileStore
    from winnow.deploy.trust.errors import AuditError

    if _is_servers(log) and (url := _shared_database(log)):
        with _table(url) as store:
            yield store
        return
    path = log / AUDIT_FILE if log.is_dir() else log
    if not path.is_file():
        raise AuditError(f"{path} is not there; name an {AUDIT_FILE}, or the kit of a site or server")
    yield FileStore(path)


@contextmanager
def _table(url: str) -> "Iterator[AuditStore]":
    from sqlalchemy.exc import SQLAlchemyError

    from winnow.deploy.server.audit import TableStore
    from winnow.deploy.server.database import Database
    from winnow.deploy.trust.errors import AuditError

    database = Database(url)
    try:
        yield TableStore(database)
    except SQLAlchemyError as error:
        raise AuditError(f"{database} cannot be read: {str(error).splitlines()[0]}") from error
    finally:
        database.close()


def _shared_database(kit: Path) -> str | None:
    from winnow.deploy.server.config import CONFIG, read_config

    return read_config(kit / CONFIG).database


def _is_servers(kit: Path) -> bool:
    """By the kit's description: its certificate may have expired long since."""
    from winnow.core.decode import UnreadableError, from_json
    from winnow.deploy.trust.kit import PARTY_FILE, Description

    try:
        return from_json((kit / PARTY_FILE).read_bytes(), Description).kind == "server"
    except (OSError, UnreadableError):
        return False


def _authority(log: Path, ca: Path | None) -> "Certificate | None":
    from winnow.deploy.trust.files import read_small
    from winnow.deploy.trust.identity import read_certificate
    from winnow.deploy.trust.kit import AUTHORITY_FILE

    beside = (log if log.is_dir() else log.parent) / AUTHORITY_FILE
    path = ca or (beside if beside.is_file() else None)
    return read_certificate(read_small(path)) if path else None
