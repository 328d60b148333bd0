"""The run folder of a question over simulated owners. A repeated call continues what is there, or reads its answer."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from winnow.analytics.question import Answer, Question
from winnow.analytics.workflow import AnalysisWorkflow, answer_text
from winnow.core import Answered, AnyEvent, Federation, RoundFinished, RunError, Snapshot
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.runs import RunFolder, RunLabel, file_names, result_record
from winnow.runs.atomic_write import one_line_errors, write_text_atomically

CHECKPOINT_SECONDS = 2.0
"""At most so often a checkpoint is written; a question that takes less begins again."""


@dataclass(frozen=True, kw_only=True)
class KeptRun:
    """A question whose run a folder keeps."""

    path: Path
    question: Question
    federation_file: Path
    names: Sequence[str]
    inputs: str
    """A digest of the owners' rows."""
    federation: Callable[[Snapshot | None], Federation]
    """The owners as they were at a checkpoint."""
    complete: Callable[[Snapshot], Snapshot]
    """What the workflow keeps, with what owners keep to themselves."""

    def answer(self, on_event: Callable[[AnyEvent], object]) -> Answer:
        config = tomli_w.dumps(
            {"federation": str(self.federation_file), "owners": list(self.names), "question": self.question.section()}
        )
        if (self.path / file_names.LABEL).is_file():
            _check_same(self.path, config, self.inputs)
            if (self.path / file_names.RESULT).is_file():
                return stored_answer(self.path)
            folder, snapshot = RunFolder.resume(self.path)
        else:
            label = _label(self.question, self.inputs)
            folder, snapshot = RunFolder.create(self.path, config, _conditions(self.names), label), None
        with folder:
            return self._run(folder, snapshot, on_event)

    def _run(self, folder: RunFolder, snapshot: Snapshot | None, on_event: Callable[[AnyEvent], object]) -> Answer:
        workflow = AnalysisWorkflow(self.question, self.names)
        if snapshot is not None:
            workflow.restore(snapshot)
        due = time.monotonic() + CHECKPOINT_SECONDS
        for event in workflow.run(self.federation(snapshot)):
            folder.record(event)
            if isinstance(event, RoundFinished) and time.monotonic() > due:
                folder.checkpoint(self.complete(workflow.snapshot()), {})
                due = time.monotonic() + CHECKPOINT_SECONDS
            on_event(event)
        assert workflow.answer is not None
        with one_line_errors(self.path):
            write_text_atomically(self.path / file_names.ANSWER, answer_text(workflow.answer))
        view, seconds = folder.view(), folder.wall_seconds
        folder.finish(result_record(view.summary(), view.label, parameters=0, message_bytes=0, wall_seconds=seconds))
        return workflow.answer


class OwnerFiles:
    """What simulated owners have for themselves in the end, by owner and name; in a folder, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / file_names.OWNER_FILES
        self.texts: dict[str, Mapping[str, str]] = {} if self._path is None else read_owner_files(self._path)

    def add(self, owner: str, files: Mapping[str, str]) -> None:
        self.texts[owner] = files
        if self._path is not None:
            with one_line_errors(self._path):
                write_text_atomically(self._path, json.dumps(self.texts, indent=1, ensure_ascii=False) + "\n")


def read_owner_files(path: Path) -> dict[str, Mapping[str, str]]:
    if not path.is_file():
        return {}
    try:
        return dict(from_json(path.read_bytes(), dict[str, dict[str, str]]))
    except UnreadableError:
        raise RunError(f"{path} cannot be read; ask again in another folder") from None


def stored_answer(path: Path) -> Answer:
    """The answer in a run folder, which must be what its event log says."""
    with one_line_errors(path):
        text = (path / file_names.ANSWER).read_text(encoding="utf-8")
    told = [event.digest for event in RunFolder.open(path).log if isinstance(event, Answered)]
    if told[-1:] != [sha256(text.encode()).hexdigest()]:
        raise RunError(f"{path / file_names.ANSWER} is not the answer that the run gave; ask again in another folder")
    answer: Answer = json.loads(text)
    return answer


def _check_same(path: Path, config: str, inputs: str) -> None:
    if (path / file_names.CONFIG).read_text(encoding="utf-8") != config:
        raise RunError(f"{path} contains another question's run; choose another folder")
    if RunLabel.read(path / file_names.LABEL).inputs != inputs:
        raise RunError(f"{path} contains a run over other rows; choose another folder to ask again")


def _conditions(names: Sequence[str]) -> dict[str, Any]:
    return {"labels": ["as given"], "of_client": [0] * len(names), "names": list(names), "sizes": [1] * len(names)}


def _label(question: Question, inputs: str) -> RunLabel:
    name = f"{question.kind} of {question.table}"
    return RunLabel(
        name=name, algorithm=question.kind, kind=question.kind, seed=0, metric="", inputs=inputs, clock="none"
    )
