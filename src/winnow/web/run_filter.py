"""Which runs a reader looks for: by words, and by settings such as `local.batch_size=16`."""

import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from winnow.core import RunError
from winnow.runs import file_names
from winnow.tracking.tracker import flat_settings
from winnow.web.run_files import check_run_file
from winnow.web.run_index import IndexedRun

MAX_WORDS = 20


def filter_runs(runs: Sequence[IndexedRun], query: str) -> list[IndexedRun]:
    """The runs that have every word of the query: in what the list says of them, or as `setting=value`."""
    words = query.lower().split()[:MAX_WORDS]
    return [run for run in runs if all(_has(run, word) for word in words)]


def _has(run: IndexedRun, word: str) -> bool:
    label = run.label
    told = [run.shown, run.state, *([label.name, label.algorithm, f"seed={label.seed}"] if label else [])]
    if any(word in each.lower() for each in told):
        return True
    return "=" in word and any(each == word or each.endswith(f".{word}") for each in _settings(run))


def _settings(run: IndexedRun) -> frozenset[str]:
    path = run.path / file_names.CONFIG
    try:
        if not check_run_file(path):
            return frozenset()
        return _read_settings(path, path.lstat().st_mtime_ns)
    except (RunError, OSError):
        return frozenset()


@lru_cache(maxsize=20_000)
def _read_settings(path: Path, _changed: int) -> frozenset[str]:
    """All settings as `key=value`; none where the file is damaged."""
    try:
        settings = flat_settings(tomllib.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError):  # a key of a thousand dots is a thousand tables in one another
        return frozenset()
    return frozenset(f"{key}={value}".lower() for key, value in settings.items())
