"""Options that these commands share."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from winnow.deploy.client.connection import Connection

KIT = typer.Option(
    "--kit", metavar="KIT", envvar="WINNOW_KIT", help="Your kit: the folder that the project owner gave you."
)
KitOption: TypeAlias = Annotated[Path, KIT]
JobName: TypeAlias = Annotated[str, typer.Argument(metavar="JOB", help="The name of a job.")]


def to_the_minute(at: float) -> str:
    """A time in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def connected(kit: Path) -> "Connection":
    from winnow.cli.console import say
    from winnow.deploy.client.connection import connect

    return connect(kit, notify=lambda text: say(f"winnow: {text}"))
