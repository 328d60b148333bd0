"""Runs in Weights & Biases: online, or kept on this machine until `wandb sync` (`mode = "offline"`)."""

from typing import Any, ClassVar, Literal

from winnow.tracking.tracker import Row, TrackedRun, Tracker, TrackWriter, measured


class WandbTracker(Tracker):
    """Needs `wandb login`, or `mode = "offline"`."""

    name: Literal["wandb"] = "wandb"
    project: str = "winnow"
    mode: Literal["online", "offline"] = "online"
    folder: str = "."
    """Where wandb keeps its own files."""
    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    def _open(self, run: TrackedRun) -> TrackWriter:
        return _WandbWriter(self, run)


class _WandbWriter(TrackWriter):
    def __init__(self, settings: WandbTracker, run: TrackedRun) -> None:
        import wandb  # noqa: PLC0415 - needs the extra `wandb`

        self._run: Any = wandb.init(
            project=settings.project,
            mode=settings.mode,
            dir=settings.folder,
            id=run.identity[:32],
            name=run.name,
            group=run.algorithm,
            config=dict(run.settings),
            resume="allow" if settings.mode == "online" else None,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )

    def write(self, row: Row) -> None:
        """wandb itself drops steps that it has: they only grow."""
        self._run.log(measured(row), step=int(row["round"]))

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
