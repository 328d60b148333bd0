"""Questions over simulated owners: the tables of a federation file, all in this process."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from winnow.analytics.question import Answer, QueryTerms, Question
from winnow.analytics.site import AnalysisSite
from winnow.analytics.tables.federation_file import FederatedTable, load_federation
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tasks import ANALYSIS_BEGIN, ANALYSIS_STEP
from winnow.analytics.workflow import AnalysisWorkflow
from winnow.core import AnyEvent, ConfigError, Outcome, Population, Task
from winnow.fleet import Devices
from winnow.simulate import SimulatedFederation


class SimulatedOwners:
    """Owners of a table in one process, by client."""

    def __init__(
        self,
        question: Question,
        tables: Mapping[str, OwnerTable],
        terms: Mapping[str, QueryTerms],
        seed: int = 0,
    ) -> None:
        self.names = list(tables)
        self.sites = [
            AnalysisSite(
                question,
                table,
                terms[name],
                client=client,
                noise_seed=hmac.digest(seed.to_bytes(8, "big"), name.encode(), "sha256"),
                submission="",
                book=lambda: None,
                identities=_Unsigned(),
            )
            for client, (name, table) in enumerate(tables.items())
        ]

    def handle(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        return [self.sites[task.client].handle([task], site)[0] for task in tasks]

    def federation(self, seed: int = 0) -> SimulatedFederation[None]:
        owners = len(self.sites)
        return SimulatedFederation(
            site=None,
            handlers={ANALYSIS_BEGIN: self.handle, ANALYSIS_STEP: self.handle},
            population=Population(sizes=np.ones(owners, np.int64)),
            fleet=Devices().draw(owners, seed),
        )


class _Unsigned:
    """In one process nobody asks an owner twice."""

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        return b""


def ask_owners(
    question: Question,
    tables: Mapping[str, OwnerTable],
    terms: Mapping[str, QueryTerms],
    *,
    seed: int = 0,
    on_event: Callable[[AnyEvent], object] = lambda event: None,
) -> Answer:
    """The answer of these owners."""
    owners = SimulatedOwners(question, tables, terms, seed)
    workflow = AnalysisWorkflow(question, owners.names)
    for event in workflow.run(owners.federation(seed)):
        on_event(event)
    assert workflow.answer is not None
    return workflow.answer


def ask_simulated(
    question: Question,
    path: Path | str,
    *,
    seed: int = 0,
    on_event: Callable[[AnyEvent], object] = lambda event: None,
) -> Answer:
    """The answer of the owners in a federation file, under its rules."""
    table = load_federation(path).table(question.table)
    rows = {name: read() for name, read in table.owners.items()}
    terms = {name: simulated_terms(question, table, owned) for name, owned in rows.items()}
    return ask_owners(question, rows, terms, seed=seed, on_event=on_event)


def simulated_terms(question: Question, table: FederatedTable, rows: OwnerTable) -> QueryTerms:
    """The first rule that allows all of a question; people are not told apart in a simulation."""
    for rule in table.queries:
        if question.needs() <= set(rule.allow):
            return QueryTerms(
                declaration=rows.declaration,
                minimum=rule.minimum,
                allow=rule.allow,
                owners=rule.owners,
                noise_needed=rule.noise is not None,
                noise_delta=None if rule.noise is None else rule.noise.delta,
            )
    needed = ", ".join(sorted(question.needs()))
    raise ConfigError(f"no rule of [[queries]] allows {needed} on table '{table.name}'; add it to one rule's allow")
