"""Arguments that the commands of people share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from winnow.deploy.client.connection import Connection

KitOption: TypeAlias = Annotated[
    Path,
    typer.Option("--kit", metavar="KIT", envvar="WINNOW_KIT", help="Your start-up kit, a folder.", show_default=False),
]
JobName: TypeAlias = Annotated[str, typer.Argument(metavar="JOB", help="A job's name.", show_default=False)]


def connected(kit: Path) -> "Connection":
    from winnow.cli.console import say
    from winnow.deploy.client.connection import connect

    return connect(kit, notify=lambda text: say(f"winnow: {text}"))
