"""Fetching data sets with a progress bar."""

from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from winnow.cli.console import messages
from winnow.data import DataSettings, catalogue, check_source, fetch


def fetch_with_bar(name: str, directory: Path | None) -> Path:
    columns = TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    console = messages()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        return fetch(name, directory, lambda done, total: bar.update(task, completed=done, total=total))


def make_present(settings: DataSettings, directory: Path | None) -> None:
    """Refuse data that cannot be had, and fetch a known set that is not here yet, before anything else starts."""
    check_source(settings)
    if settings.path is not None:
        return
    missing = [each.name for each in catalogue(directory) if each.name == settings.name and not each.present]
    for name in missing:
        fetch_with_bar(name, directory)
