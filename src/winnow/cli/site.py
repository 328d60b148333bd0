"""winnow site KIT"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra


@requires_deploy_extra
def site(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's start-up kit, a folder.")],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The site's settings; default: site.toml beside the kit.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check data, policy, disk and the connection to the server, then stop.")
    ] = False,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log as JSON, one object per line.")] = False,
) -> None:
    """Run a site of a federation: connect to the server and execute the tasks that the site's policy allows."""
    import os
    import sys

    if check:
        _check(kit, config)
        return
    options = [*(["--config", str(config)] if config else []), *(["--json-logs"] if json_logs else [])]
    # An agent runs for months beside what it serves: it leaves this command's libraries behind. And it does not import
    # what happens to lie in the folder in which it was started (-P).
    os.execv(sys.executable, [sys.executable, "-P", "-m", "winnow.deploy.site", str(kit), *options])  # noqa: S606


def _check(kit: Path, config: Path | None) -> None:
    """Print one line per finding as it is made; exit with 1 if a job would fail because of one."""
    from rich.text import Text

    from winnow.cli.console import stdout_console
    from winnow.core.untrusted_text import printable
    from winnow.deploy.site.self_check import check_site

    console, ready = stdout_console(), True
    for finding in check_site(kit, config):
        mark, style = ("ok", "green") if finding.ok else ("FAILS", "bold red")
        console.print(
            Text.assemble((f"{mark:<6}", style), f"{finding.part}: {printable(finding.text)}"), soft_wrap=True
        )
        ready = ready and finding.ok
    console.print("ready for jobs" if ready else "not ready: mend what fails, then check again")
    if not ready:
        raise typer.Exit(1)
