"""winnow ui [FOLDER…], winnow ui --kit KIT"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra

if TYPE_CHECKING:
    from winnow.deploy.client.connection import Connection

SECONDS_TO_ANSWER = 8.0
"""After which a page says that no server answers."""


def ui(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER…", help="Folders with runs; default: runs.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(metavar="PORT", help="Where to listen; 0 takes any that is free.")] = 8765,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="A loopback address of this machine.")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    kit: Annotated[
        Path | None,
        typer.Option(metavar="KIT", help="Your kit: show its federation instead of runs.", show_default=False),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="With --kit: abort jobs, submit them again, stop and restart sites.")
    ] = False,
) -> None:
    """Show runs as pages in a browser, on this machine alone: live curves, clients, comparisons, answers to questions.

    With --kit it shows a federation through your own connection and role: jobs and why they wait, logs, sites, the
    audit log, privacy budgets. It prints the address to open, and goes on until it is interrupted.
    """
    from contextlib import ExitStack
    from importlib.util import find_spec

    from winnow.core import ConfigError
    from winnow.core.installed_package import install_command

    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ConfigError(f"the pages need {', '.join(missing)}: {install_command('ui')}")
    from winnow.web.open_browser import open_browser
    from winnow.web.serve import federation_page_sets, run_page_sets, serve_pages

    if kit is None and control:
        raise ConfigError("--control needs --kit: runs on this machine are not changed from the pages")
    if kit is not None and folders:
        raise ConfigError("show folders with runs or the federation of a kit, not both")
    with ExitStack() as until_the_end:

        def ready(address: str) -> None:
            typer.echo(address)
            if browser:
                until_the_end.enter_context(open_browser(address))

        if kit is None:
            page_sets = run_page_sets(folders or [Path("runs")])
        else:
            connection = until_the_end.enter_context(_connection(kit))
            page_sets = federation_page_sets(connection, control=control)
        serve_pages(page_sets, host=host, port=port, on_ready=ready)


@requires_deploy_extra
def _connection(kit: Path) -> "Connection":
    from winnow.deploy.client.connection import connect

    return connect(kit, retry_seconds=SECONDS_TO_ANSWER)
