"""winnow local --sites 5 run PRESET"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra
from winnow.cli.interrupts import exit_on_interrupt, single_interrupt
from winnow.cli.options import DataFolder, Plugins, Quiet, Rounds, Sets, complete_algorithm

local = typer.Typer(
    help="Try a federation on this machine: a server and sites as real processes with real certificates.",
    epilog="[bold]Examples[/bold]\n\nwinnow local --sites 5 run demo --rounds 5",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@local.callback()
def size(
    context: typer.Context,
    sites: Annotated[int, typer.Option(min=1, max=200, help="The number of sites.")] = 3,
) -> None:
    context.obj = sites


@local.command()
@requires_deploy_extra
def run(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="A preset, a .toml file or a Python program.", show_default=False)
    ],
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", autocompletion=complete_algorithm, show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The seed.", show_default=False)] = None,
    rounds: Rounds = None,
    sets: Sets = None,
    plugins: Plugins = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run folder.", show_default=False)] = None,
    data: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Split the data of an experiment among sites, run it as a job, and clean up."""
    from winnow.cli.console import stderr_console, stdout_console
    from winnow.cli.render_results import run_summary, run_tables
    from winnow.deploy.client.bundle import describe_job
    from winnow.deploy.client.job_progress import watch_job
    from winnow.deploy.client.local_federation import local_federation
    from winnow.experiment.run_folders import RUNS_FOLDER, safe_folder_name, unused_path
    from winnow.runs import RunFolder

    described = describe_job(
        source, algorithm=algorithm, seed=seed, rounds=rounds, sets=sets or (), plugins=plugins or ()
    )
    folder = out or unused_path(RUNS_FOLDER / f"{safe_folder_name(described.title)}-local")
    console = stderr_console()
    with (
        single_interrupt(),
        exit_on_interrupt(lambda: "winnow: stopped; all processes have ended and their files are deleted"),
        tempfile.TemporaryDirectory(prefix="winnow-local-") as scratch,
    ):
        if not quiet:
            console.print(f"starting a server and {context.obj} sites", highlight=False)
        with local_federation(described, context.obj, Path(scratch), data_directory=data) as federation:
            job = federation.connection.submit(described, min_sites=context.obj)
            watch_job(job, console, shown=not quiet, all_needed=True)
            job.download(folder)
    view = RunFolder.open(folder)
    stdout_console().print(run_summary(view), run_tables(view))
