"""winnow version"""

import typer


def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"winnow {installed('winnow')}")


def print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit
