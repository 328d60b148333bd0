"""winnow ui [FOLDER…], winnow ui --kit KIT"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra

if TYPE_CHECKING:
    from winnow.deploy.client.connection import Connection
    from winnow.deploy.trust.project_owner import ProjectOwner

SECONDS_TO_ANSWER = 8.0
"""After which a page says that no server answers."""
GIVING_WAY = 5
"""How much nicer than other processes: where cores are scarce, a run that is watched comes first."""


def ui(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER…", help="Folders with runs; default: runs. Or the word login or certificate."),
    ] = None,
    port: Annotated[int, typer.Option(metavar="PORT", help="Where to listen; 0 takes any that is free.")] = 8765,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="A loopback address of this machine.")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    kit: Annotated[
        Path | None, typer.Option(metavar="KIT", help="Your kit: show its federation instead of runs.")
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="With --kit: abort jobs, submit them again, stop and restart sites.")
    ] = False,
    project: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --control: the project.toml beside its CA; approve applications for kits."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With certificate: the file to make; default: NAME.p12.")
    ] = None,
) -> None:
    """Show runs as pages in a browser, on this machine alone: live curves, clients, comparisons, answers to questions.

    With --kit it shows a federation through your own connection and role: jobs and why they wait, logs, sites, the
    audit log, privacy budgets. It prints the address to open, and goes on until it is interrupted.

    Where a server serves these pages itself, `winnow ui login --kit KIT` prints an address that logs a browser in, once
    and within five minutes; `winnow ui certificate --kit KIT` packs the kit's certificate for a browser.
    """
    from contextlib import ExitStack
    from importlib.util import find_spec

    from winnow.core import ConfigError
    from winnow.core.installed_package import install_command

    if folders in ([Path("login")], [Path("certificate")]):
        if kit is None:
            raise ConfigError(f"winnow ui {folders[0]} needs --kit KIT; a folder of this name is ./{folders[0]}")
        _log_in(kit) if folders == [Path("login")] else _pack_certificate(kit, out)
        return
    if out is not None:
        raise ConfigError("--out goes with winnow ui certificate")
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ConfigError(f"the pages need {', '.join(missing)}: {install_command('ui')}")
    from winnow.web.open_browser import open_browser
    from winnow.web.serve import federation_page_sets, run_page_sets, serve_pages

    if kit is None and control:
        raise ConfigError("--control needs --kit: runs on this machine are not changed from the pages")
    if kit is not None and folders:
        raise ConfigError("show folders with runs or the federation of a kit, not both")
    if project is not None and not control:
        raise ConfigError("--project needs --kit and --control: it is for approving applications")
    owner = None if project is None else _project_owner(project)
    with ExitStack() as until_the_end:

        def ready(address: str) -> None:
            typer.echo(address)
            if browser:
                until_the_end.enter_context(open_browser(address))
            os.nice(GIVING_WAY)  # after the browser, which would inherit it

        if kit is None:
            page_sets = run_page_sets(folders or [Path("runs")])
        else:
            connection = until_the_end.enter_context(_connection(kit))
            page_sets = federation_page_sets(connection, control=control, owner=owner)
        serve_pages(page_sets, host=host, port=port, on_ready=ready)


@requires_deploy_extra
def _project_owner(project: Path) -> "ProjectOwner":
    from winnow.cli.provision import ca_passphrase
    from winnow.deploy.trust.project_file import read_project
    from winnow.deploy.trust.project_owner import ProjectOwner

    folder = project.parent / read_project(project).name
    passphrase = ca_passphrase(folder, ask=False, is_new=False) if (folder / "ca").is_dir() else None
    owner = ProjectOwner(path=project, folder=folder, passphrase=passphrase)
    owner.check()
    return owner


@requires_deploy_extra
def _log_in(kit: Path) -> None:
    from winnow.cli.console import say

    with _connection(kit) as connection:
        address = connection.login_link()
    typer.echo(address)
    say("valid once, for five minutes; whoever opens it is logged in as you")


@requires_deploy_extra
def _pack_certificate(kit: Path, out: Path | None) -> None:
    from winnow.cli.console import say
    from winnow.core import ConfigError
    from winnow.deploy.trust.browser_certificate import browser_certificate
    from winnow.deploy.trust.kit import Kit
    from winnow.deploy.trust.private_file_writing import PRIVATE, write_bytes_atomically

    loaded = Kit.load(kit, "person")
    path = out or Path(f"{loaded.name}.p12")
    if path.exists():
        raise ConfigError(f"{path} is there already; name another file with --out")
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent}: no such folder")
    content, password = browser_certificate(loaded)
    write_bytes_atomically(path, content, PRIVATE)
    typer.echo(f"made {path}; its password: {password}")
    say("import it into your browser and delete the file: it holds your key")


@requires_deploy_extra
def _connection(kit: Path) -> "Connection":
    from winnow.deploy.client.connection import connect

    return connect(kit, retry_seconds=SECONDS_TO_ANSWER)
