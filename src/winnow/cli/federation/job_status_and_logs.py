"""winnow jobs, winnow logs JOB, winnow status"""

from datetime import UTC, datetime
from typing import Annotated

import typer

from winnow.cli.federation.options import JobName, KitOption, connected, to_the_minute
from winnow.cli.federation.require_deploy_extra import requires_deploy_extra
from winnow.cli.options import AsJson


@requires_deploy_extra
def jobs(kit: KitOption, as_json: AsJson = False) -> None:
    """List the jobs of a federation, the latest last, and what each is waiting for."""
    from winnow.cli.console import answer, stdout_console, write_json
    from winnow.terminal_tables import table

    with connected(kit) as connection:
        states = connection.jobs()
    if as_json:
        write_json(states)
        return
    rows = [
        (
            state.job,
            state.status,
            f"{state.round}/{state.rounds}" if state.rounds else str(state.round),
            state.submitter,
            to_the_minute(state.submitted),
            str(len(state.sites)),
        )
        for state in states
    ]
    if not rows:
        typer.echo("there are no jobs")
        return
    heads = ("Job", "Status", "Round", "By", "Submitted (UTC)", "Sites")
    stdout_console().print(table(heads, rows, numbers=False))
    for state in states:
        if state.reason:
            answer(f"{state.job} {state.status}: {state.reason}")


@requires_deploy_extra
def logs(
    job: JobName,
    kit: KitOption,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until the job ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job: the lines of the server, and each round with its scores."""
    from winnow.cli.console import write_json
    from winnow.deploy.client.job_progress import LogFormatter

    formatter = LogFormatter()
    with connected(kit) as connection:
        for line in connection.job(job).lines(follow=follow):
            text = formatter.format(line)
            if as_json:
                write_json(line)
            elif text is not None:
                at = datetime.fromtimestamp(line.at, UTC).strftime("%H:%M:%S")
                typer.echo(f"{at} {text}")


@requires_deploy_extra
def status(kit: KitOption, as_json: AsJson = False) -> None:
    """Show the status of a federation: the leading server, connected sites, and jobs by state."""
    from winnow.cli.console import answer, write_json

    with connected(kit) as connection:
        state = connection.status()
    if as_json:
        write_json(state)
        return
    counts = ", ".join(f"{count} {name}" for name, count in state.jobs.items()) or "none"
    since = to_the_minute(state.since)
    answer(f"leader {state.leader} since {since} UTC (lease token {state.lease_token}), Winnow {state.winnow_version}")
    typer.echo(f"{state.sites} {'site' if state.sites == 1 else 'sites'} connected; jobs: {counts}")
    for notice in state.notices:
        answer(notice)
