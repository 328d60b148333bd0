"""winnow sites [list], winnow sites stop NAME, winnow sites restart NAME"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.federation.options import KIT, KitOption, connected, to_the_minute
from winnow.cli.federation.require_deploy_extra import requires_deploy_extra
from winnow.cli.options import AsJson

if TYPE_CHECKING:
    from winnow.deploy.wire.messages import SiteInfo

sites = typer.Typer(rich_markup_mode="rich")

SiteName = Annotated[str, typer.Argument(metavar="SITE", help="The name of a site.")]


@sites.callback(
    invoke_without_command=True,
    epilog="[bold]Examples[/bold]\n\nwinnow sites --kit kits/ana\n\nwinnow sites restart clinic-a --kit kits/ana",
)
def all_sites(
    context: typer.Context,
    kit: Annotated[Path | None, KIT] = None,
) -> None:
    """List the sites of a federation; stop or restart one."""
    if context.invoked_subcommand is None and kit is None:
        raise typer.BadParameter("name your kit: --kit KIT", context, param_hint="--kit")
    if context.invoked_subcommand is None and kit is not None:
        list_sites(kit)


@sites.command("list")
@requires_deploy_extra
def list_sites(kit: KitOption, as_json: AsJson = False) -> None:
    """List the sites: their state, data, free resources and jobs."""
    from winnow.cli.console import stdout_console, write_json
    from winnow.terminal_tables import table

    with connected(kit) as connection:
        states = connection.sites()
    if as_json:
        write_json(states)
        return
    rows = [
        (
            state.site,
            state.organisation,
            _state(state),
            ", ".join(state.data) or "-",
            f"{state.free.cpus:g} CPUs, {state.free.memory_mb} MB, {state.free.gpus} GPUs",
            ", ".join(state.jobs) or "-",
        )
        for state in states
    ]
    heads = ("Site", "Organisation", "State", "Data", "Free", "Jobs")
    stdout_console().print(table(heads, rows, numbers=False) if rows else "no site has ever connected")


def _state(site: "SiteInfo") -> str:
    if site.revoked:
        return "revoked"
    if site.connected:
        return "connected"
    return f"not connected since {to_the_minute(site.last_seen)} UTC"


@sites.command()
@requires_deploy_extra
def stop(site: SiteName, kit: KitOption) -> None:
    """Stop the agent of a site, if the policy of the site allows it."""
    from winnow.cli.console import answer

    with connected(kit) as connection:
        answer(connection.stop_site(site))


@sites.command()
@requires_deploy_extra
def restart(site: SiteName, kit: KitOption) -> None:
    """Restart the agent of a site, if the policy of the site allows it."""
    from winnow.cli.console import answer

    with connected(kit) as connection:
        answer(connection.restart_site(site))
