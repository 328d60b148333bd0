"""A run as its readers see it: reports, tables and `winnow show`. It may live in a folder or in memory alone."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from winnow.core import AnyEvent, RunError
from winnow.runs import file_names
from winnow.runs.atomic_write import one_line_errors
from winnow.runs.checkpoint import load_checkpoint_info
from winnow.runs.evaluation_record import EvaluationRecord
from winnow.runs.event_log import EventLog
from winnow.runs.history import HistoryPoint
from winnow.runs.privacy_budgets import read_privacy_budgets
from winnow.runs.run_identity_record import RunLabel
from winnow.runs.summary import Summary, summarise
from winnow.runs.verify_files import check_integrity, read_description_files

Content = TypeVar("Content")


@dataclass(frozen=True, kw_only=True)
class ConditionsRecord:
    """What conditions.json must hold."""

    labels: list[str]
    of_client: list[int]
    names: list[str] = field(default_factory=list)
    """What clients are called, where they have names."""
    sizes: list[int] = field(default_factory=list)
    """How many samples each has."""

    def __post_init__(self) -> None:
        if any(not 0 <= condition < len(self.labels) for condition in self.of_client):
            raise ValueError("a client's condition has no label")
        if self.names and len(self.names) != len(self.of_client):
            raise ValueError("it does not name every client")
        if self.sizes and (len(self.sizes) != len(self.of_client) or min(self.sizes) < 0):
            raise ValueError("it does not tell the size of every client")


@dataclass(frozen=True, kw_only=True)
class _Best:
    value: float | None


@dataclass(frozen=True, kw_only=True)
class _Rounds:
    """What result.json must hold for the log to be checked against it, and for the run to be listed."""

    rounds: int
    best: _Best | None = None
    stopped: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run to be read. `log` can be iterated again and again; `conditions` may be empty."""

    label: RunLabel
    log: Iterable[AnyEvent]
    config_text: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    path: Path | None = None
    evaluation: EvaluationRecord | None = None
    """The scores of the model at the end, class by class and client by client."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The run in a folder, finished or not, even while it is being written."""
        if not (path / file_names.LABEL).is_file():
            raise RunError(f"{path} contains no run: {file_names.LABEL} is missing")
        with one_line_errors(path):
            finished = (path / file_names.RESULT).exists()
            _refuse_damaged(path)
            return cls(
                label=RunLabel.read(path / file_names.LABEL),
                log=EventLog(
                    path / file_names.EVENTS, _json(path / file_names.RESULT, _Rounds).rounds if finished else 0
                ),
                config_text=(path / file_names.CONFIG).read_text(encoding="utf-8", errors="replace"),
                conditions=vars(_json(path / file_names.CONDITIONS, ConditionsRecord)),
                result=_json(path / file_names.RESULT, dict[str, Any]) if finished else None,
                path=path,
                evaluation=EvaluationRecord.read(path / file_names.EVALUATION),
            )

    def events(self) -> Iterator[AnyEvent]:
        return iter(self.log)

    def summary(self) -> Summary:
        return self.summary_of(self.log)

    def summary_of(self, events: Iterable[AnyEvent], course: Sequence[HistoryPoint] | None = None) -> Summary:
        """The summary of this run's events for whoever has read them already, and perhaps made their points."""
        label = self.label
        summary = summarise(
            events,
            metric=label.metric,
            target=label.target,
            evaluated_by=label.evaluated_by,
            lower_is_better=label.lower_is_better,
            course=course,
        )
        if label.clock == "none":
            summary = summary.without_devices()
        if not summary.privacy_spent:
            return summary
        known = read_privacy_budgets(self.config)
        return replace(summary, privacy_budgets={name: known[name] for name in summary.privacy_spent if name in known})

    @property
    def config(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self.config_text)
        except tomllib.TOMLDecodeError as error:
            raise RunError(f"{(self.path or Path()) / file_names.CONFIG} is damaged: {error}") from None


def _refuse_damaged(path: Path) -> None:
    described = read_description_files(path)
    if (path / file_names.CHECKPOINT).exists():
        check_integrity(path, load_checkpoint_info(path / file_names.CHECKPOINT), described)


def _json(path: Path, content: type[Content]) -> Content:
    try:
        return msgspec.json.decode(path.read_bytes(), type=content)
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from None
