"""winnow version"""

import typer


def version() -> None:
    """Print the version and, where it is known, the commit."""
    from winnow.core.installed_package import installed_commit, installed_version

    commit = installed_commit()
    typer.echo(f"winnow {installed_version()}" + (f" (commit {commit})" if commit else ""))


def print_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit
