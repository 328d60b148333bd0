"""winnow data list, winnow data get NAME, winnow data split PRESET"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.options import AsJson, DataFolder, Seed, Sets, Source

data = typer.Typer(
    help="List, download and split data sets.",
    epilog="[bold]Examples[/bold]\n\nwinnow data list\n\nwinnow data get mnist --data ~/data",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@data.command("list")
def list_sets(data: DataFolder = None, as_json: AsJson = False) -> None:
    """List the known data sets, and where they are on this machine."""
    from dataclasses import asdict

    from winnow.cli.console import stdout_console, write_json
    from winnow.data import CatalogueEntry, catalogue
    from winnow.data.known_sets import MEGABYTE
    from winnow.terminal_tables import table

    def place(info: CatalogueEntry) -> str:
        if info.bundled:
            return "bundled"
        return str(info.where) if info.where else f"not downloaded, {info.download_bytes / MEGABYTE:.3g} MB"

    sets = catalogue(data)
    if as_json:
        write_json(
            [{**asdict(each), "where": each.where and str(each.where), "present": each.present} for each in sets]
        )
        return
    rows = [(each.name, place(each), each.description) for each in sets]
    stdout_console().print(table(("Data set", "Where", "What it is"), rows, numbers=False))


@data.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set from `winnow data list`.")],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="The target folder; default: the cache folder.")
    ] = None,
) -> None:
    """Download a data set from its official source and verify it."""
    from winnow.cli.download_progress import download_with_progress

    typer.echo(f"{name} is in {download_with_progress(name, data)}")


@data.command()
def split(
    source: Source,
    sites: Annotated[int, typer.Option(min=1, metavar="N", help="How many sites.")] = 3,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder.")] = Path("federation"),
    seed: Seed = None,
    sets: Sets = None,
    data: DataFolder = None,
) -> None:
    """Split an experiment's data into one folder per site, exactly as its simulation would, to try out a federation."""
    from winnow.config.resolve import resolve
    from winnow.core.join_names import counted
    from winnow.data.split_into_site_folders import split_into_folders
    from winnow.experiment.prepare_clients import data_settings_for

    experiment = resolve(source, sets=sets or (), seed=seed)
    for dealt in split_into_folders(data_settings_for(experiment), experiment.seed, sites, out, data):
        held = counted(dealt.clients, "client") if dealt.clients else "reference and test sets"
        typer.echo(f"{dealt.folder}: {held}, {counted(dealt.samples, 'sample')}")
