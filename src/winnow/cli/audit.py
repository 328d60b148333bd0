"""winnow audit verify LOG, winnow audit show LOG"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra
from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from winnow.deploy.trust.audit_chain import AuditLogOwner
    from winnow.deploy.trust.audit_log import AuditStore

audit = typer.Typer(
    help="Read and check audit logs.",
    epilog="[bold]Examples[/bold]\n\nwinnow audit verify kits/plant-a\n\nwinnow audit show audit.jsonl --json",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Log: TypeAlias = Annotated[Path, typer.Argument(metavar="LOG", help="The kit of a site or server, or an audit.jsonl.")]


@audit.command("verify")
@requires_deploy_extra
def verify_log(
    log: Log,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The project's ca.pem; default: the one beside the log.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The log's owner; default: the owner of the kit that contains the log."),
    ] = None,
) -> None:
    """Find any entry that was changed, deleted, inserted, cut off, or not signed by the log's owner."""
    from winnow.cli.console import say
    from winnow.deploy.trust.audit_chain import AuditLogOwner
    from winnow.deploy.trust.audit_log import verify_audit_log

    authority = _authority(log, ca)
    expected = AuditLogOwner(name=owner) if owner else _owner(log, authority)
    with _opened(log) as store:
        found = verify_audit_log(store, authority, expected or AuditLogOwner())
    if authority is None:
        say("winnow: warning: the log's signer was not verified; pass the project's ca.pem with --ca")
    elif expected is None:
        say("winnow: warning: the log's owner was not verified; pass the expected owner with --owner")
    for line in found.problems or found.unsigned:
        typer.echo(line)
    if found.problems:
        raise typer.Exit(1)
    signer = f", signed by {found.head.signer(authority)}" if found.head and authority else ""
    typer.echo(f"{log}: {found.head.seq if found.head else 0} entries, none changed{signer}")


@audit.command("show")
@requires_deploy_extra
def show_log(
    log: Log,
    last: Annotated[int, typer.Option(metavar="N", help="The last N entries.", min=1)] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the last entries of a log, without checking them."""
    from collections import deque

    from winnow.cli.console import stdout_console
    from winnow.deploy.trust.audit_chain import AuditEntry
    from winnow.terminal_tables import table

    with _opened(log) as store:
        lines = deque(store.lines(), maxlen=last)
    if as_json:
        for line in lines:
            typer.echo(line.decode(errors="replace"))
        return
    entries = [entry for line in lines if (entry := AuditEntry.parse(line)) is not None]
    rows = [
        (str(e.seq), e.time[:19].replace("T", " "), f"{e.who}, {e.organisation}", e.what, e.target, e.outcome)
        for e in entries
    ]
    stdout_console().print(table(("No.", "Time (UTC)", "Who", "What", "Target", "Outcome"), rows, numbers=False))


@contextmanager
def _opened(log: Path) -> "Iterator[AuditStore]":
    """A log is a file in the kit, or, of servers that share a database, a table."""
    from winnow.deploy.trust.audit_log_file import AUDIT_FILE, FileAuditStore
    from winnow.deploy.trust.errors import AuditError

    if _is_servers(log) and (url := _shared_database(log)):
        with _table(url) as store:
            yield store
        return
    path = log / AUDIT_FILE if log.is_dir() else log
    if not path.is_file():
        raise AuditError(f"{path} does not exist; give an {AUDIT_FILE} file or the kit of a site or server")
    yield FileAuditStore(path)


@contextmanager
def _table(url: str) -> "Iterator[AuditStore]":
    from sqlalchemy.exc import SQLAlchemyError

    from winnow.deploy.server.audit_store import DatabaseAuditStore
    from winnow.deploy.server.database import Database
    from winnow.deploy.trust.errors import AuditError

    database = Database(url)
    try:
        yield DatabaseAuditStore(database)
    except SQLAlchemyError as error:
        raise AuditError(f"{database} cannot be read: {str(error).splitlines()[0]}") from error
    finally:
        database.close()


def _shared_database(kit: Path) -> str | None:
    from winnow.deploy.server.config import CONFIG_FILE, read_config

    return read_config(kit / CONFIG_FILE).database


def _is_servers(kit: Path) -> bool:
    """By the kit's description: its certificate may have expired long since."""
    from winnow.core.message_decoding import UnreadableError, from_json
    from winnow.deploy.trust.kit import PARTY_FILE, PartyDescription

    try:
        return from_json((kit / PARTY_FILE).read_bytes(), PartyDescription).kind == "server"
    except (OSError, UnreadableError):
        return False


def _owner(log: Path, authority: "Certificate | None") -> "AuditLogOwner | None":
    """By the kit's manifest, which the authority signed; its certificate may have expired long since."""
    from winnow.deploy.trust.audit_chain import AuditLogOwner
    from winnow.deploy.trust.kit import MANIFEST_FILE, read_manifest

    folder = log if log.is_dir() else log.parent
    if authority is None or not (folder / MANIFEST_FILE).is_file():
        return None
    manifest = read_manifest(folder, authority)
    shared = manifest.kind == "server" and log.is_dir() and _shared_database(folder) is not None
    return AuditLogOwner(kind=manifest.kind, name="" if shared else manifest.name)


def _authority(log: Path, ca: Path | None) -> "Certificate | None":
    from winnow.deploy.trust.kit import AUTHORITY_FILE
    from winnow.deploy.trust.peer_identity import read_certificate
    from winnow.deploy.trust.private_file_writing import read_small

    beside = (log if log.is_dir() else log.parent) / AUTHORITY_FILE
    path = ca or (beside if beside.is_file() else None)
    return read_certificate(read_small(path)) if path else None
