"""An owner's part in answering a question: its terms, then messages, step by step, until the results are open.

The owner runs the question's program itself. Nothing that the server sends decides what is computed: it passes on terms
and messages, and what it passes on wrongly does not fit.
"""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.analytics.agreement import SERVER, Agreement, Statement, decode_statements, encode_statements
from winnow.analytics.kept_steps import kept_state, read_kept
from winnow.analytics.list_parties import ListParty, list_party
from winnow.analytics.program import (
    CountDistinct,
    Match,
    Mix,
    NumberStep,
    PartyProtocol,
    Product,
    Sum,
    SumChain,
    local_vector,
    noise_share,
)
from winnow.analytics.program_run import ProgramRun, encode_opened
from winnow.analytics.question import Answer, QueryTerms, Question
from winnow.analytics.tasks import ANALYSIS_BEGIN, ANALYSIS_STEP
from winnow.core import Failure, Handler, Outcome, Reply, Task, WinnowError
from winnow.core.untrusted_text import one_line
from winnow.learn.secure_randomness import secure_generator
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.set_intersection.match_party import MatchParty
from winnow.privacy.shares.batched_step import BatchedStep, step_party
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.masked_sum import MaskedStep, MaskedSumParty, MaskKeys, add_up
from winnow.privacy.shares.message_party import MessageParty, MessageStep, SessionMemory
from winnow.privacy.shares.party import SecureStep, StepParty

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

RESTARTED_STAGE = "restarted"
"""The stage of a failure that another attempt at the step would mend: this owner lost its part of the present one."""


class StepTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a step's tasks. Those that begin it carry everybody's terms, as `statements`."""

    attempt: str
    """Unlike any other attempt at this step, so that no answer of an earlier one is taken for one of this."""
    exchange: int
    statements: str = ""
    new_keys: bool = False
    """Whether masks take keys that are agreed on now."""


class SignsOnce(Protocol):
    """The part of `PartyIdentities` that an analysis needs."""

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes: ...


class AnalysisSite:
    """One owner; a helper, which computes without rows, has neither `table` nor `terms`."""

    def __init__(
        self,
        question: Question,
        table: "OwnerTable | None",
        terms: QueryTerms | None,
        *,
        client: int,
        noise_seed: bytes,
        submission: str,
        book: Callable[[], None],
        identities: SignsOnce,
        on_match: Callable[[list[str]], object] = lambda identifiers: None,
        on_files: Callable[[Mapping[str, str]], object] = lambda files: None,
        site_of: Callable[[int], str | None] | None = None,
        least_parties: int = 1,
    ) -> None:
        """`noise_seed` is a secret of this owner and the submission. `book` takes the cost of a noisy question from the
        owner's budget, once, and raises if that does not last. `identities` signs one message per ballot for good.
        `on_match` is called with the identifiers that a set intersection found, where this owner may know them,
        `on_files` with what a protocol leaves to this owner alone, as texts by the names of files.
        `site_of` is the name in the certificate of a client's site, by which names in the list of terms are checked.
        `least_parties` are as many as the question's author wants to take part.
        """
        self._question, self._table, self._client = question, table, client
        self._terms = "" if terms is None else terms.model_dump_json()
        self._noise_seed, self._submission, self._book, self._identities = noise_seed, submission, book, identities
        self._on_match, self._on_files, self._site_of = on_match, on_files, site_of
        self._least_parties = least_parties
        self._rows: OwnerTable | None = None
        self._run: ProgramRun[Answer] | None = None
        self._agreement: Agreement | None = None
        self._party: StepParty | BatchedStep | MaskedSumParty | MessageParty | ListParty | None = None
        self._keys, self._memory = MaskKeys(), SessionMemory()
        self._attempt = ""

    def handlers(self) -> dict[str, Handler[Any]]:
        return {ANALYSIS_BEGIN: self.handle, ANALYSIS_STEP: self.handle}

    def handle(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        return [self._handled(task) for task in tasks]

    def _handled(self, task: Task) -> Outcome:
        try:
            return self._begin(task) if task.name == ANALYSIS_BEGIN else self._take_part(task)
        except SharesError as error:
            self._party = None
            names = {} if self._agreement is None else self._agreement.names
            whose = "" if error.party is None else f"{names.get(error.party, f'party {error.party}')}: "
            return Failure(task=task, stage=task.name, reason=f"{whose}{error}")
        except WinnowError as error:
            self._party = None
            return Failure(task=task, stage=task.name, reason=str(error))
        except MemoryError:
            self._party = None
            return Failure(task=task, stage=task.name, reason="its memory is not enough for this question")

    def _begin(self, task: Task) -> Reply:
        """The owner's terms; a helper has none."""
        terms = np.frombuffer(self._terms.encode(), np.uint8)
        return Reply(task=task, payload={"terms": {"json": terms}} if self._terms else {})

    def _take_part(self, task: Task) -> Outcome:
        try:
            asked = msgspec.convert(task.settings, StepTask)
        except msgspec.ValidationError as error:
            raise SharesError("the server's task cannot be read") from error
        if asked.statements:
            self._attempt = asked.attempt
            return self._begin_step(task, asked)
        if self._party is None or asked.attempt != self._attempt:
            return Failure(task=task, stage=RESTARTED_STAGE, reason="it was restarted in the middle of a step")
        messages = dict(task.peer_messages)
        if "messages" in task.payload:
            messages[SERVER] = np.asarray(task.payload["messages"]["server"]).tobytes()
        return self._reply(task, self._party.receive(messages))

    def _begin_step(self, task: Task, asked: StepTask) -> Outcome:
        agreement, run = self._continued(task, asked.statements)
        if task.round != run.number:
            raise SharesError(f"the server asks for step {task.round}; this owner's next one is {run.number}")
        if run.step is None:
            raise SharesError("the question is answered; it has no further step")
        step = agreement.secure_step(run)
        self._fix_step(run.number, step.digest)
        if isinstance(step, MaskedStep):
            assert isinstance(run.step, SumChain)
            return self._begin_chain(task, step, run.step, new_keys=asked.new_keys)
        if isinstance(step, MessageStep):
            assert isinstance(run.step, PartyProtocol)
            return self._begin_protocol(task, step, run.step, new_keys=asked.new_keys)
        if not isinstance(step, SecureStep):
            self._party = list_party(step, run.step, self._client, self._rows)
            return self._reply(task, self._party.first_messages())
        assert not isinstance(run.step, Match | CountDistinct | Mix | SumChain | Product | PartyProtocol)
        values = self._input(agreement, run.step, run.number) if self._table is not None else None
        if len(agreement.owners) == 1:
            assert values is not None
            alone = values.astype(object) if step.thresholds is None else values >= step.thresholds
            return self._opened(task, alone, {})
        self._party = step_party(step, self._client, values)
        return self._reply(task, self._party.first_messages())

    def _begin_chain(self, task: Task, step: MaskedStep, asked: SumChain, *, new_keys: bool) -> Outcome:
        """No step is begun twice with the same keys: the server could have two vectors under one mask."""
        if len(step.everybody) == 1:
            return self._opened(task, add_up([asked.vectors(self._rows)]), {})
        if new_keys:
            self._keys = MaskKeys()
        elif step.masked and (not self._keys.pairs or step.digest in self._keys.begun):
            return Failure(task=task, stage=RESTARTED_STAGE, reason="it has no keys for this attempt")
        self._party = MaskedSumParty(step, self._client, asked.vectors(self._rows), self._keys)
        return self._reply(task, self._party.first_messages())

    def _begin_protocol(self, task: Task, step: MessageStep, asked: PartyProtocol, *, new_keys: bool) -> Outcome:
        if new_keys:
            self._memory = SessionMemory()
        elif not self._memory.session or step.digest in self._memory.begun:
            return Failure(task=task, stage=RESTARTED_STAGE, reason="it has no session for this attempt")
        start = asked.start(self._rows, step.parties.index(self._client))
        self._party = MessageParty(step, self._client, start, self._memory)
        return self._reply(task, self._party.first_messages())

    def _fix_step(self, number: int, digest: bytes) -> None:
        """A step is computed on one set of inputs for ever: on two, equal noise would cancel out, and other noise would
        average out.
        """
        try:
            self._identities.sign_once(self._client, digest, b"analysis" + number.to_bytes(4, "big"))
        except ProtocolError as error:
            raise SharesError(
                f"step {number} of this question was begun with other owners, terms or results"
            ) from error

    def _continued(self, task: Task, statements: str) -> tuple[Agreement, ProgramRun[Answer]]:
        """The program as far as this owner kept it: it cannot be led through a step twice, or on other terms."""
        kept = read_kept(task.client_state)
        if kept is not None and kept.statements != statements:
            raise SharesError("the server changed the owners' terms after the first step")
        if self._agreement is None or encode_statements(self._agreement.statements) != statements:
            self._agreement, self._run = self._agreed(statements), None
            self._rows = self._rows_that_count(self._agreement)
            if kept is not None and self._rows is not None:
                self._rows = replace(self._rows, matched=tuple(kept.matched))
        if self._rows is not None:
            self._rows = replace(self._rows, kept=b"" if kept is None else kept.private)
        opened = [] if kept is None else kept.opened
        if self._run is None or self._run.opened not in (opened, opened[:-1]):
            self._run = self._agreement.run(opened)
        elif self._run.opened != opened:
            self._run.add(opened[-1])
        return self._agreement, self._run

    def _agreed(self, statements: str) -> Agreement:
        listed = decode_statements(statements)
        if not any(each.client == self._client and each.terms == self._terms for each in listed):
            raise SharesError("the server's list of terms has not those of this owner")
        self._check_names(listed)
        # With two owners left the server computes as the third party: it and one of them learn the other's numbers.
        if len(listed) < self._least_parties:
            raise SharesError(
                f"the server lists {len(listed)} of the {self._least_parties} parties that the question's author wants"
            )
        return Agreement(question=self._question, submission=self._submission, statements=tuple(listed))

    def _check_names(self, listed: Sequence[Statement]) -> None:
        """Names decide who asks in a set intersection, and one site under two names would count as two owners."""
        try:
            wrong = [each for each in listed if self._site_of and self._site_of(each.client) != each.owner]
        except ProtocolError as error:
            raise SharesError(str(error)) from error
        if wrong:
            number, name = wrong[0].client, one_line(wrong[0].owner)
            raise SharesError(f"the server calls client {number} {name}; it is another site")

    def _rows_that_count(self, agreement: Agreement) -> "OwnerTable | None":
        """Noise hides at most as many rows of a unit as every owner declares: further ones do not count."""
        if self._table is None:
            return None
        place = agreement.owners.index(self._client)
        table = replace(self._table, place=place, secret=hmac.digest(self._noise_seed, b"draws", "sha256"))
        if self._question.epsilon is None:
            return table
        declared = table.declaration.model_copy(update={"rows": agreement.terms.declaration.rows})
        return replace(table, declaration=declared).limited()

    def _input(self, agreement: Agreement, step: NumberStep, number: int) -> NDArray[Any]:
        """What this owner puts into a step: from its rows, with its share of the noise."""
        assert self._rows is not None
        owner, owners = agreement.owners.index(self._client), len(agreement.owners)
        values = local_vector(step, self._rows, owner, owners)
        if isinstance(step, Sum) and step.noise is not None:
            self._book()
            key = hmac.digest(self._noise_seed, b"step" + number.to_bytes(4, "big"), "sha256")
            values = values + noise_share(step, owners, secure_generator(key))
        return values

    def _reply(self, task: Task, messages: dict[int, bytes]) -> Reply:
        assert self._party is not None
        to_server = messages.pop(SERVER, None)
        payload = {} if to_server is None else {"messages": {"server": np.frombuffer(to_server, np.uint8)}}
        if self._party.opened is None:
            return Reply(task=task, payload=payload, peer_messages=messages)
        if isinstance(self._party, MatchParty) and self._party.common is not None:
            self._on_match(self._party.common)
            assert self._rows is not None
            self._rows = replace(self._rows, matched=tuple(sorted(self._party.common)))
        if isinstance(self._party, MessageParty) and self._rows is not None:
            self._keep(self._rows, self._party.kept)
        opened = self._opened(task, self._party.opened, messages)
        return msgspec.structs.replace(opened, payload={**opened.payload, **payload})

    def _keep(self, rows: "OwnerTable", kept: bytes) -> None:
        """What a protocol left to this owner alone."""
        assert self._run is not None
        self._rows, asked = replace(rows, kept=kept), self._run.step
        if isinstance(asked, PartyProtocol) and asked.files is not None:
            self._on_files(asked.files(self._rows, kept))

    def _opened(self, task: Task, values: NDArray[Any], messages: Mapping[int, bytes]) -> Reply:
        """The result, which this owner keeps once the server has it from all; last messages go with it."""
        assert self._run is not None
        assert self._agreement is not None
        opened, statements = encode_opened(values), encode_statements(self._agreement.statements)
        self._party = None
        matched, private = ((), b"") if self._rows is None else (self._rows.matched, self._rows.kept)
        return Reply(
            task=task,
            payload={"opened": {"values": np.frombuffer(opened, np.uint8)}},
            peer_messages=messages,
            new_client_state=kept_state(statements, [*self._run.opened, opened], matched, private),
        )
