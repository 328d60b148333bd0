"""A question in a job's process at a site: this owner's part of the answer, from its table and on its own terms."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from winnow.analytics.question import EpsilonLeft, QueryTerms, Question
from winnow.analytics.site import AnalysisSite
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.read_rows import read_site_table
from winnow.analytics.tables.row_digest import row_digest
from winnow.analytics.tasks import ANALYSIS_STEP
from winnow.deploy.jobs.ipc_messages import PrepareJob, QuestionTerms
from winnow.deploy.jobs.party_signing_via_agent import AgentIdentities
from winnow.deploy.jobs.task_executor import SiteHandlers
from winnow.deploy.wire.messages import DataDescription

ONE_OWNER = DataDescription(sizes=[1])
"""All that a job learns of a table before its question is answered: an owner is one client, however many its rows."""


RESULTS, COMMON_FILE = "results", "common.txt"
"""Where a question leaves what is for this site alone: the keys that a set intersection found, a part of trees."""


def analysis_handlers(
    question: Question,
    prepare: PrepareJob,
    client_number: Callable[[DataDescription], int],
    identities: AgentIdentities,
    submission: str,
    least_parties: int,
) -> SiteHandlers:
    """What a site does to answer a question, or to help two owners; `client_number` waits for this party's number."""
    told = prepare.question
    tables = {} if told is None else _tables(question, prepare.data)
    table = _with_others(tables) if tables else None
    site = AnalysisSite(
        question,
        table,
        None if told is None or not tables else _terms(question, told, tables),
        client=client_number(ONE_OWNER),
        noise_seed=b"" if told is None else told.noise_seed,
        submission=submission,
        book=cache(identities.book),
        identities=identities,
        site_of=identities.site,
        least_parties=least_parties,
        on_match=partial(_keep_common, Path(prepare.folder) / RESULTS),
        on_files=partial(_keep, Path(prepare.folder) / RESULTS),
    )
    return SiteHandlers(site=None, handlers=site.handlers(), volatile=frozenset({ANALYSIS_STEP}))


def _tables(question: Question, data: Mapping[str, Any]) -> dict[str, OwnerTable]:
    """The question's tables that this site has."""
    sections = data["tables"] if len(question.tables) > 1 else {question.table: data}
    return {name: read_site_table(name, section) for name, section in sections.items()}


def _with_others(tables: Mapping[str, OwnerTable]) -> OwnerTable:
    first, *others = tables
    return replace(tables[first], beside={name: tables[name] for name in others})


def _terms(question: Question, told: QuestionTerms, tables: Mapping[str, OwnerTable]) -> QueryTerms:
    first, *others = tables
    return QueryTerms(
        declaration=tables[first].declaration,
        table="" if first == question.table else first,
        beside={name: tables[name].declaration for name in others},
        replicated={name: row_digest(each) for name, each in tables.items() if each.declaration.replicated},
        minimum=told.minimum,
        rows=told.rows,
        allow=tuple(told.allow),
        owners=told.owners,
        reveal=told.reveal,
        noise_needed=told.noise_delta is not None,
        noise_delta=told.noise_delta,
        budget=_budget(told),
    )


def _budget(told: QuestionTerms) -> EpsilonLeft | None:
    if told.epsilon is None or told.epsilon_left is None or told.noise_delta is None:
        return None
    return EpsilonLeft(left=told.epsilon_left, epsilon=told.epsilon, delta=told.noise_delta)


def _keep_common(folder: Path, identifiers: Sequence[str]) -> None:
    _keep(folder, {COMMON_FILE: "".join(f"{each}\n" for each in identifiers)})


def _keep(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
