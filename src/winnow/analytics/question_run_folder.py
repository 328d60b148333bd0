"""The run folder of a question over simulated owners. A repeated call continues what is there, or reads its answer."""

import json
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import tomli_w

from winnow.analytics.question import Answer, Question
from winnow.analytics.workflow import AnalysisWorkflow, answer_text
from winnow.core import Answered, AnyEvent, Federation, RoundFinished, RunError, Snapshot
from winnow.runs import RunFolder, RunLabel, file_names, result_record
from winnow.runs.atomic_write import one_line_errors, write_text_atomically

CHECKPOINT_SECONDS = 2.0
"""At most so often a checkpoint is written; a question that takes less begins again."""


def run_in_folder(
    path: Path,
    question: Question,
    place: Path,
    names: Sequence[str],
    inputs: str,
    federation: Callable[[Snapshot | None], Federation],
    on_event: Callable[[AnyEvent], object],
) -> Answer:
    """Answer a question whose run this folder keeps. `inputs` is a digest of the owners' rows, `place` the federation
    file; `federation` gives the owners as they were at a checkpoint.
    """
    config = tomli_w.dumps({"federation": str(place), "owners": list(names), "question": _section(question)})
    if (path / file_names.LABEL).is_file():
        _check_same(path, config, inputs)
        if (path / file_names.RESULT).is_file():
            return stored_answer(path)
        folder, snapshot = RunFolder.resume(path)
    else:
        folder, snapshot = RunFolder.create(path, config, _conditions(names), _label(question, inputs)), None
    workflow = AnalysisWorkflow(question, names)
    if snapshot is not None:
        workflow.restore(snapshot)
    with folder:
        due = time.monotonic() + CHECKPOINT_SECONDS
        for event in workflow.run(federation(snapshot)):
            folder.record(event)
            if isinstance(event, RoundFinished) and time.monotonic() > due:
                folder.checkpoint(workflow.snapshot(), {})
                due = time.monotonic() + CHECKPOINT_SECONDS
            on_event(event)
        assert workflow.answer is not None
        with one_line_errors(path):
            write_text_atomically(path / file_names.ANSWER, answer_text(workflow.answer))
        view, seconds = folder.view(), folder.wall_seconds
        folder.finish(result_record(view.summary(), view.label, parameters=0, message_bytes=0, wall_seconds=seconds))
    return workflow.answer


def stored_answer(path: Path) -> Answer:
    """The answer in a run folder, which must be what its event log says."""
    with one_line_errors(path):
        text = (path / file_names.ANSWER).read_text(encoding="utf-8")
    told = [event.digest for event in RunFolder.open(path).log if isinstance(event, Answered)]
    if told[-1:] != [sha256(text.encode()).hexdigest()]:
        raise RunError(f"{path / file_names.ANSWER} is not the answer that the run gave; ask again in another folder")
    answer: Answer = json.loads(text)
    return answer


def _section(question: Question) -> dict[str, Any]:
    return question.model_dump(mode="json", exclude_none=True)


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
