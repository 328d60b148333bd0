"""What a truth discovery found, as Python, JSON, CSV and a page."""

import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from winnow.analytics.truth.crowd_answers import CrowdAnswers
from winnow.analytics.truth.decided_labels import decided_items
from winnow.analytics.truth.trust_ranking import NO_TRUST
from winnow.analytics.truth.truth_methods import TruthEstimate, TruthMethod
from winnow.analytics.truth.truth_workflow import TruthDiscovery
from winnow.core import ConfigError, WinnowError, suggest
from winnow.core.untrusted_text import no_formula, one_line
from winnow.runs.atomic_write import one_line_errors, write_text_atomically

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False)
class TruthReport:
    """`answer` has all of it, as JSON has it."""

    answer: dict[str, Any]

    @property
    def items(self) -> list[dict[str, Any]]:
        """Each item with its truth, and how confident the method is of it; None of what nobody answered."""
        return list(self.answer["items"])

    @property
    def participants(self) -> list[dict[str, Any]]:
        """Each worker with its trust; None of one who gave no answer or left."""
        return list(self.answer["participants"])

    @property
    def truth(self) -> dict[str, Any]:
        return {record["item"]: record["truth"] for record in self.answer["items"]}

    @property
    def trust(self) -> dict[str, float | None]:
        return {record["worker"]: record["trust"] for record in self.answer["participants"]}

    @property
    def training_weights(self) -> dict[str, Any]:
        """`aggregate` of a training in which clients of these names count by their trust."""
        known = {worker: max(trust, 0.0) for worker, trust in self.trust.items() if trust is not None}
        if not known:
            raise WinnowError("the answer has nobody's trust; ask owners of a table for it (--trust)")
        return {"name": "trust", "trust": known}

    def to_json(self) -> str:
        return json.dumps(self.answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, path: str | Path) -> Path:
        """Write the report page: one file that opens offline."""
        from winnow.analytics.truth.truth_page import write_truth_page  # noqa: PLC0415 - Plotly takes a while

        return write_truth_page(self, Path(path))

    def write_csv(self, folder: str | Path) -> Path:
        """Write items.csv and participants.csv into a folder."""
        place = Path(folder)
        with one_line_errors(place):
            place.mkdir(parents=True, exist_ok=True)
            for name in ("items", "participants"):
                write_text_atomically(place / f"{name}.csv", _csv(self.answer[name]))
        return place

    def plot(self, what: str = "trust") -> "go.Figure":
        """The "trust" in each participant, or the "confidence" in the items."""
        from winnow.analytics.truth.truth_page import confidence_figure, trust_figure  # noqa: PLC0415 - Plotly
        from winnow.report.notebook_plots import for_notebook  # noqa: PLC0415

        figures = {"trust": trust_figure, "confidence": confidence_figure}
        if what not in figures:
            raise ConfigError(f"plot: {what!r} is unknown; {suggest(what, figures)}")
        return for_notebook(figures[what](self))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from winnow.analytics.truth.truth_page import truth_html  # noqa: PLC0415

        return truth_html(self)

    def __repr__(self) -> str:
        return f"TruthReport({len(self.answer['items'])} items, {len(self.answer['participants'])} participants)"


def make_report(
    crowd: CrowdAnswers,
    method: TruthMethod,
    estimate: TruthEstimate,
    iterations: int,
    private: TruthDiscovery | None = None,
    *,
    ranking: bool = False,
) -> TruthReport:
    """The report of an estimate; `private` is how it was found, if not in the clear. With `ranking`, those who are
    still there rank themselves by trust in shares.
    """
    items = decided_items(crowd.items, crowd.labels, crowd.answered() > 0, estimate, scale=(crowd.low, crowd.high))
    gave = np.bincount(crowd.arrays.workers, minlength=len(crowd.workers)) > 0
    there = np.isin(np.arange(len(crowd.workers)), range(len(gave)) if private is None else private.present)
    trust = [
        float(value) if known else None
        for value, known in zip(method.trust(crowd.arrays, estimate), gave & there, strict=True)
    ]
    participants: list[dict[str, Any]] = [
        {"worker": worker, "trust": value} for worker, value in zip(crowd.workers, trust, strict=True)
    ]
    if ranking:
        _add_ranks(participants, np.flatnonzero(there).tolist())
    answer: dict[str, Any] = {
        "method": method.name,
        "iterations": iterations,
        "answers": len(crowd.arrays.items),
        "labels": list(crowd.labels),
        "items": items,
        "participants": participants,
        "agreement": _agreement(crowd, [record["truth"] for record in items]) if crowd.labels else None,
        "private": None if private is None else _protocol(private),
    }
    return TruthReport(answer)


def _add_ranks(participants: list[dict[str, Any]], there: list[int]) -> None:
    """Who left has no rank, and who gave no answers comes last."""
    from winnow.analytics.truth.ranking_simulation import MIN_RANKED, rank_participants  # noqa: PLC0415 - the extra query

    if len(there) < MIN_RANKED:
        raise WinnowError(f"{len(there)} participants are left; a ranking takes {MIN_RANKED}, or it would show trust")
    for record in participants:
        record["rank"] = None
    trusts = [participants[place]["trust"] for place in there]
    order = rank_participants([NO_TRUST if trust is None else trust for trust in trusts])
    for rank, place in enumerate(order, start=1):
        participants[there[place]]["rank"] = rank


def _agreement(crowd: CrowdAnswers, truths: list[Any]) -> float:
    """The share of answered items whose truth is what most workers said; ties of the vote count as agreement."""
    votes = crowd.votes()
    most = votes == votes.max(axis=1, keepdims=True)
    agreed = [most[number, crowd.labels.index(truth)] for number, truth in enumerate(truths) if truth is not None]
    return float(np.mean(agreed))


def _protocol(workflow: TruthDiscovery) -> dict[str, Any]:
    terms = workflow.terms
    return {
        "holders": len(terms.holders),
        "threshold": terms.threshold,
        "dropouts": terms.dropouts,
        "stayed": len(workflow.present),
        "fraction_bits": terms.bits,
        "stopped": workflow.stopped,
    }


def _csv(records: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(records[0].keys())
    for record in records:
        writer.writerow(_cell(value) for value in record.values())
    return text.getvalue()


def _cell(value: Any) -> str:
    """Text that a spreadsheet shows and does not run."""
    if not isinstance(value, str):
        return "" if value is None else repr(value)
    return no_formula(one_line(value))
