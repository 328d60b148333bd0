"""winnow server KIT"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from winnow.deploy.server.served_pages import PagesContext


@requires_deploy_extra
def server(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The server's start-up kit.")],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The server's settings; default: server.toml in the kit.")
    ] = None,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log as JSON, one object per line.")] = False,
    migrate_only: Annotated[bool, typer.Option("--migrate-only", help="Migrate the database and exit.")] = False,
) -> None:
    """Run a server of a federation until it is told to stop (SIGTERM or Ctrl-C).

    Several servers that share a PostgreSQL database take over from each other; a single server with SQLite continues
    where it stopped when restarted.
    """
    from winnow.deploy.logging_setup import log_to_standard_error
    from winnow.deploy.server.app import run_server

    log_to_standard_error(as_json=json_logs)
    run_server(kit, config, migrate_only=migrate_only, serve_pages=_serve_pages)


def _serve_pages(context: "PagesContext") -> "AbstractContextManager[None]":
    """The pages are an extra, which only servers with [ui] need."""
    from importlib.util import find_spec

    from winnow.core import ConfigError
    from winnow.core.installed_package import install_command

    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ConfigError(f"[ui] needs {', '.join(missing)}: {install_command('ui')}")
    from winnow.web.server_pages import serve_server_pages

    return serve_server_pages(context)
