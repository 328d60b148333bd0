"""Fetching data sets with a progress bar."""

from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from winnow.cli.console import stderr_console
from winnow.data import DataSettings, catalogue, check_source, fetch


def download_with_progress(name: str, directory: Path | None) -> Path:
    columns = TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    console = stderr_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        return fetch(name, directory, lambda done, total: bar.update(task, completed=done, total=total))


def ensure_downloaded(settings: DataSettings, directory: Path | None) -> None:
    """Refuse data that cannot be had, and fetch a known set that is not here yet, before anything else starts."""
    check_source(settings)
    if settings.path is not None:
        return
    missing = [each.name for each in catalogue(directory) if each.name == settings.name and not each.present]
    for name in missing:
        download_with_progress(name, directory)
