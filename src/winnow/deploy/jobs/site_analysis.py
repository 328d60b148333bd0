"""A question in a job's process at a site: this owner's part of the answer, from its table and on its own terms."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from winnow.analytics.question import EpsilonLeft, QueryTerms, Question
from winnow.analytics.site import AnalysisSite
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.read_rows import read_site_table
from winnow.analytics.tasks import ANALYSIS_STEP
from winnow.deploy.jobs.ipc_messages import PrepareJob, QuestionTerms
from winnow.deploy.jobs.party_signing_via_agent import AgentIdentities
from winnow.deploy.jobs.task_executor import SiteHandlers
from winnow.deploy.wire.messages import DataDescription

ONE_OWNER = DataDescription(sizes=[1])
"""All that a job learns of a table before its question is answered: an owner is one client, however many its rows."""


RESULTS, COMMON_FILE = "results", "common.txt"
"""Where a set intersection leaves the keys that it found, for this site alone."""


def analysis_handlers(
    question: Question,
    prepare: PrepareJob,
    client_number: Callable[[DataDescription], int],
    identities: AgentIdentities,
    submission: str,
) -> SiteHandlers:
    """What a site does to answer a question, or to help two owners; `client_number` waits for this party's number."""
    told = prepare.question
    table = None if told is None else read_site_table(question.table, prepare.data)
    site = AnalysisSite(
        question,
        table,
        None if told is None or table is None else _terms(told, table),
        client=client_number(ONE_OWNER),
        noise_seed=b"" if told is None else told.noise_seed,
        submission=submission,
        book=cache(identities.book),
        identities=identities,
        site_of=identities.site,
        on_match=lambda identifiers: _keep(identifiers, Path(prepare.folder) / RESULTS / COMMON_FILE),
    )
    return SiteHandlers(site=None, handlers=site.handlers(), volatile=frozenset({ANALYSIS_STEP}))


def _terms(told: QuestionTerms, table: OwnerTable) -> QueryTerms:
    return QueryTerms(
        declaration=table.declaration,
        minimum=told.minimum,
        rows=told.rows,
        allow=tuple(told.allow),
        owners=told.owners,
        noise_needed=told.noise_delta is not None,
        noise_delta=told.noise_delta,
        budget=_budget(told),
    )


def _budget(told: QuestionTerms) -> EpsilonLeft | None:
    if told.epsilon is None or told.epsilon_left is None or told.noise_delta is None:
        return None
    return EpsilonLeft(left=told.epsilon_left, epsilon=told.epsilon, delta=told.noise_delta)


def _keep(identifiers: Sequence[str], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{each}\n" for each in identifiers), encoding="utf-8")
