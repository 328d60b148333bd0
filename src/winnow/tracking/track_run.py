"""Brings a run's rows to trackers: while it goes on, or out of its folder."""

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from winnow.core import AnyEvent, ConfigError, WinnowError
from winnow.core.untrusted_text import one_line
from winnow.runs import RunFolder, RunView, file_names, points
from winnow.runs.history import RunHistory
from winnow.runs.metrics_csv import row_of
from winnow.tracking.tracker import TrackedRun, Tracker, TrackWriter, flat_settings

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5


def tracked_run(view: RunView, name: str) -> TrackedRun:
    """The same run has the same identity wherever its folder lies: its label holds the moment at which it began."""
    label = view.label
    seen = f"{name}\n{label.to_json()}\n{view.config_text}"
    return TrackedRun(
        name=name,
        identity=hashlib.sha256(seen.encode()).hexdigest(),
        settings=flat_settings(view.config),
        algorithm=label.algorithm,
        seed=label.seed,
    )


class RunTracking:
    """Trackers that follow a run. What one of them cannot do is told once; it never ends the run."""

    def __init__(self) -> None:
        self._history = RunHistory()
        self._writers: dict[str, TrackWriter] = {}

    def begin(self, trackers: Sequence[Tracker], run: TrackedRun, earlier: Iterable[AnyEvent]) -> None:
        """Open trackers, and tell them of the rounds before these."""
        for number, tracker in enumerate(trackers, start=1):
            self._writers[f"{tracker.package} {number}"] = _opened(tracker, run)
        for event in earlier:
            self.follow(event)

    def follow(self, event: AnyEvent) -> None:
        point = self._history.follow(event)
        if point is None:
            return
        row = row_of(point)
        for name, writer in list(self._writers.items()):
            with self._kept_from_ending_the_run(name):
                writer.write(row)
                writer.flush()

    def close(self, *, finished: bool) -> None:
        for name, writer in list(self._writers.items()):
            with self._kept_from_ending_the_run(name):
                writer.close(finished=finished)
        self._writers.clear()

    @contextmanager
    def _kept_from_ending_the_run(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            del self._writers[name]
            log.warning("tracking by %s ends here: %s; winnow export brings the rest later", name, _line(error))


def _opened(tracker: Tracker, run: TrackedRun) -> TrackWriter:
    try:
        return tracker.open(run)
    except WinnowError:
        raise
    except Exception as error:
        raise ConfigError(f"tracking by {tracker.package} is impossible: {_line(error)}") from None


def _line(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")[:300]


def export_run(folder: Path, tracker: Tracker, *, follow: bool = False) -> int:
    """Write the rounds that a run folder has, and with `follow` those that come until it is finished; how many."""
    view = RunFolder.open(folder)
    writer = _opened(tracker, tracked_run(view, folder.resolve().name))
    written = 0
    finished = False
    try:
        while True:
            finished = (folder / file_names.RESULT).exists()
            rows = [row_of(point) for point in points(view.events())]
            for row in rows[written:]:
                writer.write(row)
            if len(rows) > written:
                writer.flush()
            written = len(rows)
            if finished or not follow:
                return written
            time.sleep(POLL_SECONDS)
            view = RunFolder.open(folder)
    finally:
        writer.close(finished=finished)
