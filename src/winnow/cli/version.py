"""winnow version"""

import typer


def version() -> None:
    """Print the version."""
    from winnow.core.installed_package import installed_version

    typer.echo(f"winnow {installed_version()}")


def print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit
