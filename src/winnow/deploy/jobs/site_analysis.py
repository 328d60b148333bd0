"""A question in a job's process at a site: this owner's part of the answer, from its table and on its own terms."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from winnow.analytics.question import QueryTerms, Question
from winnow.analytics.site import AnalysisSite
from winnow.analytics.tables.read_rows import read_site_table
from winnow.analytics.tasks import ANALYSIS_STEP
from winnow.core import ConfigError
from winnow.deploy.jobs.ipc_messages import PrepareJob
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
    """What a site does to answer a question; `client_number` waits for this owner's number."""
    told = prepare.question
    if told is None:
        raise ConfigError("this site has no rule for questions")
    table = read_site_table(question.table, prepare.data)
    terms = QueryTerms(
        declaration=table.declaration,
        minimum=told.minimum,
        allow=tuple(told.allow),
        owners=told.owners,
        noise_needed=told.noise_delta is not None,
        noise_delta=told.noise_delta,
    )
    site = AnalysisSite(
        question,
        table,
        terms,
        client=client_number(ONE_OWNER),
        noise_seed=told.noise_seed,
        submission=submission,
        book=cache(identities.book),
        identities=identities,
        on_match=lambda identifiers: _keep(identifiers, Path(prepare.folder) / RESULTS / COMMON_FILE),
    )
    return SiteHandlers(site=None, handlers=site.handlers(), volatile=frozenset({ANALYSIS_STEP}))


def _keep(identifiers: Sequence[str], path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{each}\n" for each in identifiers), encoding="utf-8")
