"""Questions over simulated owners: the tables of a federation file, all in this process."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from winnow.analytics.agreement import Agreement, decode_statements
from winnow.analytics.kept_steps import kept_state, read_kept
from winnow.analytics.program import Match, Program, Step, run_plain
from winnow.analytics.question import Answer, QueryTerms, Question, merge_terms
from winnow.analytics.question_run_folder import KeptRun
from winnow.analytics.sealed_answer import FOLDER_HINT, opened_answer, with_reader
from winnow.analytics.simulated_tables import simulated_tables
from winnow.analytics.site import AnalysisSite
from winnow.analytics.tables.federation_file import load_federation
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tasks import ANALYSIS_BEGIN, ANALYSIS_STEP
from winnow.analytics.workflow import AnalysisWorkflow, read_snapshot
from winnow.core import AnyEvent, ConfigError, Outcome, Population, Snapshot, Task
from winnow.fleet import Devices
from winnow.simulate import SimulatedFederation
from winnow.simulate.kept_states import StatesByClient

T = TypeVar("T")
OnMatch: TypeAlias = Callable[[str, list[str]], object]
"""Told the identifiers that an owner learns, by its name."""
OnFiles: TypeAlias = Callable[[str, Mapping[str, str]], object]
"""Told what an owner has for itself in the end, as texts by the names of files."""


class SimulatedOwners:
    """Owners of a table in one process, by client."""

    def __init__(
        self,
        question: Question,
        tables: Mapping[str, OwnerTable],
        terms: Mapping[str, QueryTerms],
        seed: int = 0,
        on_match: OnMatch = lambda owner, identifiers: None,
        on_files: OnFiles = lambda owner, files: None,
    ) -> None:
        self.names = list(tables)
        self._store = StatesByClient()
        self._question, self._tables = question, list(tables.values())
        self.sites = [
            AnalysisSite(
                question,
                table,
                terms[name],
                client=client,
                noise_seed=hmac.digest(seed.to_bytes(8, "big"), _seed_text(question, name), "sha256"),
                submission="",
                book=lambda: None,
                identities=_Unsigned(),
                site_of=lambda number: dict(enumerate(self.names)).get(number),
                on_match=partial(on_match, name),
                on_files=partial(on_files, name),
            )
            for client, (name, table) in enumerate(tables.items())
        ]

    def handle(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        return [self.sites[task.client].handle([task], site)[0] for task in tasks]

    def federation(self, seed: int = 0, after: Snapshot | None = None) -> SimulatedFederation[None]:
        """With `after`, owners keep what they kept at the workflow's snapshot."""
        owners, store = len(self.sites), StatesByClient()
        self._store = store
        if after is not None:
            statements, opened = read_snapshot(after)
            matched = self._matched(statements, opened)
            for client in range(owners):
                private = np.asarray(after.arrays.get(_private(client), np.zeros(0, np.uint8))).tobytes()
                store.write(client, kept_state(statements, opened, matched.get(client, ()), private))
        return SimulatedFederation(
            site=None,
            handlers={ANALYSIS_BEGIN: self.handle, ANALYSIS_STEP: self.handle},
            population=Population(sizes=np.ones(owners, np.int64)),
            fleet=Devices().draw(owners, seed),
            store=store,
        )

    def with_private(self, snapshot: Snapshot) -> Snapshot:
        """What the workflow keeps, and what owners keep to themselves: all of them are in this process."""
        kept = {client: read_kept(self._store.read(client)) for client in range(len(self.sites))}
        private = {_private(client): np.frombuffer(own.private, np.uint8) for client, own in kept.items() if own}
        return replace(snapshot, arrays={**snapshot.arrays, **private})

    def _matched(self, statements: str, opened: Sequence[bytes]) -> dict[int, list[str]]:
        """What owners learnt in set intersections before they were interrupted, by client."""
        agreement = Agreement(question=self._question, submission="", statements=tuple(decode_statements(statements)))
        run, found = agreement.run(), dict[int, list[str]]()
        for each in opened:
            if isinstance(run.step, Match) and run.step.share:
                places = {agreement.owners[place]: place for place in run.step.parties}
                rows = [replace(self._tables[client], place=place) for client, place in places.items()]
                common = set.intersection(*({*run.step.local(each)} for each in rows))
                found.update(dict.fromkeys(places, sorted(common)))
            run.add(each)
        return found


def _private(client: int) -> str:
    return f"owner {client}"


def _seed_text(question: Question, owner: str) -> bytes:
    """The same whoever may read the answer: a simulation can be repeated."""
    return f"{question.model_dump_json(exclude={'reader'})}\n{owner}".encode()


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
    on_match: OnMatch = lambda owner, identifiers: None,
    on_files: OnFiles = lambda owner, files: None,
) -> Answer:
    """The answer of these owners."""
    owners = SimulatedOwners(question, tables, terms, seed, on_match, on_files)
    workflow = AnalysisWorkflow(question, owners.names)
    for event in workflow.run(owners.federation(seed)):
        on_event(event)
    assert workflow.answer is not None
    return workflow.answer


def ask_simulated(
    question: Question,
    path: Path | str,
    *,
    owners: Sequence[str] = (),
    folder: Path | None = None,
    seed: int = 0,
    on_event: Callable[[AnyEvent], object] = lambda event: None,
    on_match: OnMatch = lambda owner, identifiers: None,
    on_files: OnFiles = lambda owner, files: None,
) -> Answer:
    """The answer of the owners in a federation file, or of some of them, under its rules.

    `folder` keeps the run: a question that was interrupted is continued there, and an answer that is there is read.
    `on_match` gets what an owner learns in a set intersection, `on_files` what it has for itself in the end.
    """
    if folder is not None and question.shows_rows():
        raise ConfigError(f"rows are not kept in a run folder; {FOLDER_HINT}")
    question, reader = with_reader(question)
    rows, terms = simulated_tables(question, load_federation(path), owners)
    if folder is None:
        answer = ask_owners(question, rows, terms, seed=seed, on_event=on_event, on_match=on_match, on_files=on_files)
        return opened_answer(answer, reader)
    next(question.program(merge_terms(question, terms)), None)  # a question with a mistake leaves no folder behind
    parties = SimulatedOwners(question, rows, terms, seed, on_match, on_files)
    run = KeptRun(
        path=folder,
        question=question,
        federation_file=Path(path),
        names=parties.names,
        inputs=_digest_of(rows),
        federation=partial(parties.federation, seed),
        complete=parties.with_private,
    )
    return run.answer(on_event)


def planned_steps(question: Question, path: Path, owners: Sequence[str] = ()) -> tuple[Answer, list[Step]]:
    """What simulated owners would do, from their rows as they are and without any protection."""
    question, _ = with_reader(question)
    rows, terms = simulated_tables(question, load_federation(path), owners)
    merged, steps = merge_terms(question, terms), list[Step]()
    return run_plain(lambda: noted(question.program(merged), steps), list(rows.values())), steps


def noted(program: Program[T], steps: list[Step]) -> Program[T]:
    """A program whose steps are kept."""
    try:
        step = next(program)
        while True:
            steps.append(step)
            step = program.send((yield step))
    except StopIteration as stop:
        answer: T = stop.value
        return answer


def _digest_of(rows: Mapping[str, OwnerTable]) -> str:
    """Of the rows that a question is about: a run is not continued over others."""
    digest = sha256()
    for name, owned in rows.items():
        digest.update(name.encode())
        for table in (owned, *owned.beside.values()):
            for column in table.rows.combine_chunks().columns:
                for buffer in (buffer for chunk in column.chunks for buffer in chunk.buffers() if buffer is not None):
                    digest.update(buffer)
    return digest.hexdigest()
