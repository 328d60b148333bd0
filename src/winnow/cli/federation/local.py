"""winnow local run PRESET --sites 5"""

import tempfile
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra
from winnow.cli.interrupts import exit_on_interrupt, single_interrupt
from winnow.cli.options import AlgorithmName, DataFolder, Plugins, Quiet, Rounds, Seed, Sets

DEFAULT_SITES = 3

local = typer.Typer(
    help="Try a federation on this machine: a server and sites as real processes with real certificates.",
    epilog="[bold]Examples[/bold]\n\nwinnow local run demo --sites 5 --rounds 5",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


NumberOfSites: TypeAlias = Annotated[
    int | None,
    typer.Option("--sites", metavar="N", min=1, max=200, help=f"The number of sites; default: {DEFAULT_SITES}."),
]


@local.callback()
def size(context: typer.Context, sites: NumberOfSites = None) -> None:
    """People type the number before `run` as well as after it; the last one counts."""
    context.obj = sites


@local.command()
@requires_deploy_extra
def run(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="FILE", help="A preset, a .toml file or a Python program.")],
    sites: NumberOfSites = None,
    algorithm: AlgorithmName = None,
    seed: Seed = None,
    rounds: Rounds = None,
    sets: Sets = None,
    plugins: Plugins = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run folder.")] = None,
    data: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Split the data of an experiment among sites, run it as a job, and clean up."""
    from winnow.cli.console import stderr_console, stdout_console
    from winnow.cli.render_results import run_summary, run_tables
    from winnow.deploy.client.bundle import describe_job
    from winnow.deploy.client.job_progress import watch_job
    from winnow.deploy.client.local_federation import local_federation
    from winnow.experiment.run_folders import RUNS_FOLDER, claim_folder, safe_folder_name
    from winnow.runs import RunFolder, check_folder_is_free

    if out is not None:
        check_folder_is_free(out)
    described = describe_job(
        source, algorithm=algorithm, seed=seed, rounds=rounds, sets=sets or (), plugins=plugins or ()
    )
    default = RUNS_FOLDER / f"{safe_folder_name(described.title)}-local"
    count = sites or context.obj or DEFAULT_SITES
    console = stderr_console()
    with (
        claim_folder(out or default, given=out is not None) as folder,
        single_interrupt(),
        exit_on_interrupt(lambda: "winnow: stopped; all processes have ended and their files are deleted"),
        tempfile.TemporaryDirectory(prefix="winnow-local-") as scratch,
    ):
        if not quiet:
            console.print(f"starting a server and {count} sites", highlight=False)
        with local_federation(described, count, Path(scratch), data_directory=data) as federation:
            job = federation.connection.submit(described, min_sites=count)
            watch_job(job, console, shown=not quiet, all_needed=True)
            job.download(folder)
    view = RunFolder.open(folder)
    stdout_console().print(run_summary(view), run_tables(view))
