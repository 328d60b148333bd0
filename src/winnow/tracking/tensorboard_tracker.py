"""Runs in TensorBoard: one folder a run, with an event file that is written anew whenever tracking begins."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from winnow.runs.atomic_write import one_line_errors
from winnow.tracking.tracker import Row, TrackedRun, Tracker, TrackWriter, measured

SUFFIX = ".winnow"
"""The end of the names of our event files: those of others in the same folder are left alone."""


class TensorBoardTracker(Tracker):
    """`tensorboard --logdir FOLDER` shows the runs. The log of a run is the source, so its file is made from the start
    each time: a file that a killed process left behind would otherwise show rounds twice.
    """

    name: Literal["tensorboard"] = "tensorboard"
    folder: str = "logs"
    package: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"

    def _open(self, run: TrackedRun) -> TrackWriter:
        return _TensorBoardWriter(Path(self.folder) / run.name, run)


class _TensorBoardWriter(TrackWriter):
    def __init__(self, folder: Path, run: TrackedRun) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # noqa: PLC0415 - needs the extra `tensorboard`

        with one_line_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for earlier in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
                earlier.unlink()
            self._writer: Any = SummaryWriter(str(folder), filename_suffix=SUFFIX)
        self._writer.add_text("settings", "\n".join(f"    {name} = {value}" for name, value in run.settings.items()))

    def write(self, row: Row) -> None:
        for name, value in measured(row).items():
            self._writer.add_scalar(
                name.replace(".", "/"), value, int(row["round"]), new_style=True, double_precision=True
            )

    def flush(self) -> None:
        self._writer.flush()

    def close(self, *, finished: bool) -> None:
        self._writer.close()
