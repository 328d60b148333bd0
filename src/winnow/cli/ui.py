"""winnow ui [FOLDER…]"""

from pathlib import Path
from typing import Annotated

import typer


def ui(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FOLDER…", help="Folders with runs; default: runs.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(metavar="PORT", help="Where to listen; 0 takes any that is free.")] = 8765,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="A loopback address of this machine.")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Show runs as pages in a browser, on this machine alone: live curves, clients, comparisons, answers to questions.

    It prints the address to open, and goes on until it is interrupted.
    """
    import webbrowser
    from importlib.util import find_spec

    from winnow.core import ConfigError
    from winnow.core.installed_package import install_command

    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise ConfigError(f"the pages need {', '.join(missing)}: {install_command('ui')}")
    from winnow.web.serve import run_page_sets, serve_pages

    def ready(address: str) -> None:
        typer.echo(address)
        if browser:
            webbrowser.open(address)

    serve_pages(run_page_sets(folders or [Path("runs")]), host=host, port=port, on_ready=ready)
