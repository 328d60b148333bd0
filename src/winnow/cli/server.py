"""winnow server KIT"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra


@requires_deploy_extra
def server(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The server's start-up kit.", show_default=False)],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The server's settings; default: server.toml in the kit.", show_default=False
        ),
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
    run_server(kit, config, migrate_only=migrate_only)
