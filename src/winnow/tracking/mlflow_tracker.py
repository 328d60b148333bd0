"""Runs in MLflow: settings as parameters, rows as metrics by step, under an experiment of the run's name."""

import time
from typing import Any, ClassVar, Literal

from winnow.tracking.tracker import Row, TrackedRun, Tracker, TrackWriter, measured

IDENTITY = "winnow.run"
"""The tag by which a run is found again."""
PARAMETERS_AT_ONCE = 100
PARAMETER_CHARACTERS = 6000


class MlflowTracker(Tracker):
    """`uri` is a server's address or `sqlite:///FILE`; where none is given, MLflow's own default."""

    name: Literal["mlflow"] = "mlflow"
    uri: str | None = None
    experiment: str = "winnow"
    package: ClassVar[str] = "mlflow"
    extra: ClassVar[str] = "mlflow"

    def _open(self, run: TrackedRun) -> TrackWriter:
        return _MlflowWriter(self, run)


class _MlflowWriter(TrackWriter):
    def __init__(self, settings: MlflowTracker, run: TrackedRun) -> None:
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - needs the extra `mlflow`

        self._client: Any = MlflowClient(tracking_uri=settings.uri)
        self._written: dict[str, set[int]] = {}
        try:
            self._run = self._find_or_begin(settings, run)
            self._client.set_terminated(self._run, status="RUNNING")
        except BaseException:
            self._disconnect()
            raise

    def _find_or_begin(self, settings: MlflowTracker, run: TrackedRun) -> str:
        known = self._client.get_experiment_by_name(settings.experiment)
        place = known.experiment_id if known else self._client.create_experiment(settings.experiment)
        found = self._client.search_runs([place], f"tags.`{IDENTITY}` = '{run.identity}'", max_results=1)
        return str(found[0].info.run_id) if found else self._begin(place, run)

    def _begin(self, place: str, run: TrackedRun) -> str:
        from mlflow.entities import Param  # noqa: PLC0415

        tags = {IDENTITY: run.identity, "winnow.algorithm": run.algorithm, "winnow.seed": str(run.seed)}
        begun = self._client.create_run(place, run_name=run.name, tags=tags).info.run_id
        parameters = [Param(name, str(value)[:PARAMETER_CHARACTERS]) for name, value in run.settings.items()]
        for first in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(begun, params=parameters[first : first + PARAMETERS_AT_ONCE])
        return str(begun)

    def write(self, row: Row) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415

        step, now = int(row["round"]), int(1000 * time.time())
        missing = [
            Metric(name, value, now, step) for name, value in measured(row).items() if step not in self._steps(name)
        ]
        if missing:
            self._client.log_batch(self._run, metrics=missing)

    def _steps(self, name: str) -> set[int]:
        """The steps of a metric that are there already: a process killed in between may have left part of a row."""
        if name not in self._written:
            history = self._client.get_metric_history(self._run, name)
            self._written[name] = {each.step for each in history}
        return self._written[name]

    def close(self, *, finished: bool) -> None:
        try:
            self._client.set_terminated(self._run, status="FINISHED" if finished else "KILLED")
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        """Close the pooled connections to a database, which MLflow would keep until the process ends."""
        engine = getattr(self._client._tracking_client.store, "engine", None)
        if engine is not None:
            engine.dispose()
