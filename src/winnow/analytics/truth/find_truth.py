"""Truth discovery from a table of answers, in the clear or by the private protocol."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from winnow.analytics.query_extra import require_query_extra
from winnow.analytics.truth.crowd_answers import CrowdAnswers, read_answers
from winnow.analytics.truth.explain_truth import truth_explanation
from winnow.analytics.truth.truth_methods import DEFAULT_METHOD, NUMERIC_METHOD, method_named
from winnow.analytics.truth.truth_report import TruthReport, make_report
from winnow.analytics.truth.truth_simulation import discover_privately
from winnow.analytics.truth.truth_terms import KEPT, TruthTerms, agree_on_terms
from winnow.analytics.truth.truth_vectors import discover_plainly
from winnow.core import AnyEvent, ConfigError, WinnowError


def find_truth(
    answers: str | Path | Mapping[str, Sequence[Any]],
    *,
    item: str = "item",
    worker: str = "worker",
    label: str = "label",
    method: str = DEFAULT_METHOD,
    labels: Sequence[str] = (),
    iterations: int | None = None,
    private: bool = False,
    ranking: bool = False,
    holders: int | None = None,
    threshold: int | None = None,
    dropouts: str = KEPT,
    dropout: float = 0.0,
    seed: int = 0,
    on_event: Callable[[AnyEvent], object] = lambda event: None,
) -> TruthReport:
    """The report on these answers; see `winnow.truth`."""
    if iterations is not None and iterations < 1:
        raise ConfigError(f"iterations: {iterations} is not 1 or more")
    if seed < 0:
        raise ConfigError(f"seed: {seed} is not 0 or more")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout: {dropout:g} is not a probability below 1")
    _check_private(private, holders is not None, threshold is not None, dropout > 0, dropouts != KEPT, ranking)
    if ranking:
        require_query_extra()
    way = method_named(method)
    crowd = _read(answers, item, worker, label, method, labels)
    if not private:
        count = iterations or way.iterations
        return make_report(crowd, way, discover_plainly(way, crowd.arrays, count), count)
    terms = _terms(crowd, method, holders, threshold, dropouts, seed)
    found = discover_privately(
        terms, crowd.arrays, iterations=iterations, dropout=dropout, seed=seed, on_event=on_event
    )
    if found.estimate is None:
        raise WinnowError(f"no sum could be opened: {found.stopped}")
    return make_report(crowd, way, found.estimate, found.round, found, ranking=ranking)


def explain_truth_of(
    answers: str | Path | Mapping[str, Sequence[Any]],
    *,
    item: str = "item",
    worker: str = "worker",
    label: str = "label",
    method: str = DEFAULT_METHOD,
    labels: Sequence[str] = (),
    private: bool = False,
    ranking: bool = False,
    holders: int | None = None,
    threshold: int | None = None,
    dropouts: str = KEPT,
) -> dict[str, list[str]]:
    """Who would learn what, and warnings, before anything is asked."""
    _check_private(private, holders is not None, threshold is not None, dropouts != KEPT, ranking)
    method_named(method)
    crowd = _read(answers, item, worker, label, method, labels)
    return truth_explanation(_terms(crowd, method, holders, threshold, dropouts, 0) if private else None, ranking)


def _read(
    answers: str | Path | Mapping[str, Sequence[Any]],
    item: str,
    worker: str,
    label: str,
    method: str,
    labels: Sequence[str],
) -> CrowdAnswers:
    numeric = method == NUMERIC_METHOD
    if numeric and labels:
        raise ConfigError("labels are for classes; the method crh takes numbers")
    return read_answers(answers, item=item, worker=worker, label=label, numeric=numeric, labels=labels)


def _terms(
    crowd: CrowdAnswers, method: str, holders: int | None, threshold: int | None, dropouts: str, seed: int
) -> TruthTerms:
    return agree_on_terms(
        method=method,
        items=len(crowd.items),
        classes=len(crowd.labels),
        participants=len(crowd.workers),
        holders=holders,
        threshold=threshold,
        dropouts=dropouts,
        seed=seed,
    )


def _check_private(private: bool, *given: bool) -> None:
    """Refuse settings that nothing would follow from."""
    if not private and any(given):
        raise ConfigError(
            "holders, threshold, dropout, dropouts and ranking belong to the private protocol; add --private"
        )
