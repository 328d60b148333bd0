"""winnow site KIT"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra


@requires_deploy_extra
def site(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="The site's start-up kit, a folder.", show_default=False)],
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The site's settings; default: site.toml beside the kit.", show_default=False
        ),
    ] = None,
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Log as JSON, one object per line.")] = False,
) -> None:
    """Run a site of a federation: connect to the server and execute the tasks that the site's policy allows."""
    import os
    import sys

    options = [*(["--config", str(config)] if config else []), *(["--json-logs"] if json_logs else [])]
    # An agent runs for months beside what it serves: it leaves this command's libraries behind. And it does not import
    # what happens to lie in the folder in which it was started (-P).
    os.execv(sys.executable, [sys.executable, "-P", "-m", "winnow.deploy.site", str(kit), *options])  # noqa: S606
