"""winnow submit FILE --kit ME"""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.federation.options import JobName, KitOption, connected
from winnow.cli.federation.require_deploy_extra import requires_deploy_extra
from winnow.cli.interrupts import exit_on_interrupt, shell_argument
from winnow.cli.options import AlgorithmName, Plugins, Rounds, Seed, Sets


@requires_deploy_extra
def submit(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A preset, a .toml file or a Python program.")],
    kit: KitOption,
    algorithm: AlgorithmName = None,
    seed: Seed = None,
    rounds: Rounds = None,
    sets: Sets = None,
    plugins: Plugins = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The name of the job; made from the title if omitted.")
    ] = None,
    sites: Annotated[str | None, typer.Option(metavar="A,B,…", help="The sites that take part.")] = None,
    min_sites: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Start when this many sites have accepted.")
    ] = None,
    priority: Annotated[int | None, typer.Option(metavar="N", help="Jobs with a higher priority start first.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job until it ends.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="With --wait: download the result to this folder.")
    ] = None,
) -> None:
    """Submit a job to a federation: the same file that `winnow run` simulates."""
    from winnow.cli.console import say, stderr_console
    from winnow.core import ConfigError
    from winnow.deploy.client.job_progress import watch_job
    from winnow.experiment.comparison import split_commas
    from winnow.runs import check_folder_is_free

    if out is not None and not wait:
        raise ConfigError("--out needs --wait: there is no result before the job has ended")
    if out is not None:
        check_folder_is_free(out)
    with connected(kit) as connection:
        job = connection.submit(
            source,
            name=name,
            sites=None if sites is None else tuple(split_commas(sites)),
            min_sites=min_sites,
            priority=priority,
            on_line=say,
            algorithm=algorithm,
            seed=seed,
            rounds=rounds,
            sets=sets or (),
            plugins=plugins or (),
        )
        typer.echo(job.name)
        if sites is None and min_sites is None and job.state().status == "queued":
            say("the job starts as soon as enough sites have accepted it; use --min-sites N to wait for more sites")
        if wait:
            with exit_on_interrupt(lambda: _goes_on(job.name, kit)):
                watch_job(job, stderr_console())
            if out is not None:
                say(f"downloaded to {job.download(out)}")


def _goes_on(job: str, kit: Path) -> str:
    """Who no longer waits does not end a job."""
    named = f"{shlex.quote(job)} --kit {shell_argument(kit)}"
    ways = f"its result: winnow download {named}; to end it: winnow abort {named}"
    return f"winnow: stopped waiting, and the job goes on; {ways}"


@requires_deploy_extra
def clone(
    job: JobName,
    kit: KitOption,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The name of the new job.")] = None,
) -> None:
    """Submit an earlier job again, in your own name."""
    with connected(kit) as connection:
        typer.echo(connection.clone(job, name).name)


@requires_deploy_extra
def abort(
    job: JobName,
    kit: KitOption,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason, for the log and the other users.")] = "",
) -> None:
    """Abort a job. The result of its committed rounds can still be downloaded."""
    from winnow.cli.console import answer

    with connected(kit) as connection:
        answer(f"{job}: {connection.job(job).abort(reason)}")


@requires_deploy_extra
def download(
    job: JobName,
    kit: KitOption,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run folder to write; default: runs/JOB.")] = None,
) -> None:
    """Download the result of a job so far as a run folder, for `winnow show` and `winnow report`."""
    with connected(kit) as connection:
        typer.echo(str(connection.job(job).download(out or Path("runs") / job)))
