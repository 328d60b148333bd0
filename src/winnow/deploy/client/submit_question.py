"""A person's question to a federation: submitted as a job, watched, and its answer brought back."""

import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from winnow.core import AnyEvent, ConfigError, RunError, suggest
from winnow.core.untrusted_text import one_line
from winnow.deploy.client.bundle_signing import sign_bundle
from winnow.deploy.client.told_event import told_event
from winnow.deploy.jobs.bundle_format import Bundle
from winnow.deploy.trust.kit import Kit
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import EVENT_KIND, SITE_LOST_KIND, JobInfo, SiteInfo
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.runs import file_names

if TYPE_CHECKING:
    from winnow.analytics.question import Question
    from winnow.deploy.client.connection import Connection
    from winnow.deploy.client.unsigned_requests import SubmittedJob

ANSWER_SECONDS = 60.0
"""Seconds that an owner has to accept a question, and to answer each step of it."""
JOIN_PATIENCE = 10
"""So many times longer may a step take that matches keys: 100,000 of them take a slow machine minutes."""
MAX_ANSWER_BYTES = 64 << 20
MAX_DEPTH = 32
"""Values in values in values of an answer."""
MAX_TEXT = 10_000
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 0.5
NOISE = ("epsilon", "delta")
"""What an answer with noise repeats of its question."""

OnEvent = Callable[[AnyEvent], object]
OnLine = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class DeployedAnswer:
    """What came back: plain values, whose rows they are about, and the job's name."""

    values: dict[str, Any]
    owners: tuple[str, ...]
    job: str


def question_config(question: "Question", job: Mapping[str, Any]) -> str:
    """The configuration of a job that puts a question; `job` holds further keys of its [job] section."""
    section = question.section()
    kind = section.pop("kind")
    return tomli_w.dumps(
        {
            "name": f"{kind} of {question.table}",
            "data": {"name": question.table},
            "job": {"kind": kind, **job},
            "question": section,
        }
    )


def sign_question(kit: Kit, question: "Question", job: Mapping[str, Any]) -> Bundle:
    return sign_bundle(kit, Bundle(config=question_config(question, job)))


def ask(
    connection: "Connection",
    question: "Question",
    *,
    owners: Sequence[str] = (),
    timeout: float = ANSWER_SECONDS,
    on_event: OnEvent = lambda event: None,
    on_line: OnLine = lambda line: None,
    folder: Path | None = None,
) -> DeployedAnswer:
    """Put a question to these owners, or to all that offer its tables. All of them have to answer. Two owners may stand
    beside a helper: a site without the table whose policy says helper = true.

    `on_event` gets what happens, `on_line` what a person should read meanwhile; `folder` becomes the run folder.
    """
    from winnow.analytics.answers import answer_errors  # noqa: PLC0415 - most commands ask nothing
    from winnow.analytics.sealed_answer import FOLDER_HINT, opened_answer, with_reader  # noqa: PLC0415 - loads pydantic
    from winnow.deploy.client.connection import new_name  # noqa: PLC0415 - it imports this module

    if folder is not None and question.shows_rows():
        raise ConfigError(f"rows are not kept in a run folder; {FOLDER_HINT}")
    question, reader = with_reader(question)
    named = _known(connection, owners) or _offering(connection, question.tables)
    patience = JOIN_PATIENCE if len(question.tables) > 1 else 1
    seconds = {"task_timeout": float(timeout) * patience, "site_timeout": max(5.0, float(timeout))}
    settings = {"sites": list(named), **seconds} if named else {"min_sites": 2, **seconds}
    job = connection.send(
        new_name(f"{question.kind}-{question.table}"), sign_question(connection.kit, question, settings)
    )
    on_line(f"job {job.name}: asking {', '.join(named) or 'the owners'}")
    try:
        _wait_for_owners(job, named, timeout, on_line)
        final = _watch(job, on_event, on_line)
    except KeyboardInterrupt:
        job.abort("its author no longer waits for the answer")
        raise
    if final.status != "finished":
        raise RunError(one_line(f"job {job.name} {final.status}: {final.reason}"))
    values = _answer(connection, job)
    check_answers(question, values, named)
    values = opened_answer(values, reader)
    with answer_errors():
        whose = values.get("owners", final.sites)  # sites without a helper
        taking_part = tuple(each for each in final.sites if each in whose)
    answer = DeployedAnswer(values=values, owners=taking_part, job=job.name)
    if folder is not None:
        job.download(folder)
    return answer


def _sites(connection: "Connection") -> list[SiteInfo] | None:
    """All that ever connected; None where this person may not list them."""
    try:
        return [each for each in connection.sites() if not each.revoked]
    except RequestRefusedError:
        return None


def _known(connection: "Connection", owners: Sequence[str]) -> tuple[str, ...]:
    """These owners. One that no site is called would be waited for in vain."""
    present = [each.site for each in _sites(connection) or ()] if owners else []
    for unknown in (each for each in owners if present and each not in present):
        hint = suggest(unknown, present, at_most=12)
        raise ConfigError(f"no site called {one_line(unknown)!r} has ever connected; {hint}")
    return tuple(owners)


def _offering(connection: "Connection", tables: Sequence[str]) -> tuple[str, ...]:
    """The sites that offer the tables, connected or not, or if none has them all, some of them; none where this person
    may not list them.
    """
    sites = _sites(connection)
    if sites is None:
        return ()
    offered = {name for each in sites for name in each.data}
    for table in (each for each in tables if each not in offered):
        hint = suggest(table, offered, at_most=12) if offered else "no site offers any"
        raise ConfigError(f"no site offers a table called {table!r}; {hint}")
    complete = tuple(each.site for each in sites if {*tables} <= {*each.data})
    return complete or tuple(each.site for each in sites if {*tables} & {*each.data})


def _wait_for_owners(job: "SubmittedJob", named: Sequence[str], timeout: float, on_line: OnLine) -> None:
    """Until the job runs. One owner that refuses, or does not answer in time, ends it."""
    begun, pause, told = time.monotonic(), FIRST_PAUSE, ""
    while (state := job.state()).status in ("queued", "starting"):
        if state.rejections:
            _give_up(job, "; ".join(f"{site} refuses: {reason}" for site, reason in sorted(state.rejections.items())))
        if time.monotonic() > begun + timeout:
            silent = [site for site in named if site not in state.sites]
            asked = state.status == "starting" or any(site in state.sites for site in named)
            who = f"{', '.join(silent)} did not answer" if silent and asked else f"{state.reason}; no answer"
            _give_up(job, f"{who} within {timeout:g} seconds; ask without them (--owners …), or later")
        if state.reason != told and time.monotonic() > begun + 2:
            told = state.reason
            on_line(f"job {job.name} is {state.status}: {state.reason}")
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, 1.3 * pause)


def _give_up(job: "SubmittedJob", reason: str) -> None:
    job.abort(reason)
    raise RunError(one_line(reason))


def _watch(job: "SubmittedJob", on_event: OnEvent, on_line: OnLine) -> JobInfo:
    """Follow a running job to its end. An owner that is lost ends it: without all of them there is no answer."""
    for line in job.lines():
        if line.kind == EVENT_KIND:
            on_event(told_event(line))
        elif line.kind == SITE_LOST_KIND:
            _give_up(job, line.text)
        else:
            on_line(one_line(f"{line.source}: {line.text}"))
    return job.state()


def check_answers(question: "Question", values: Mapping[str, Any], named: Sequence[str]) -> None:
    """RunError if this answers another question, or is about others than those who were `named`: a server may mix them
    up. Two owners may stand beside a helper, which is none.
    """
    asked = question.model_dump(mode="json")
    keys = ["kind", "table"]
    if "sql" in asked:
        keys += ["sql"] if asked["explain"] else ["sql", "epsilon"] if question.epsilon is None else ["sql", *NOISE]
    if any(values.get(key) != asked[key] for key in keys):
        raise RunError("the server sent the answer to another question; nothing is shown")
    owners = values.get("owners")
    if not named or owners is None:
        return
    if not isinstance(owners, list) or not all(isinstance(each, str) for each in owners):
        raise RunError("the server's answer does not say whose rows it is about; nothing is shown")
    if others := [each for each in owners if each not in named]:
        raise RunError(f"the answer is about {one_line(others[0])}, who was not asked; nothing is shown")
    if len({*owners}) != len(owners) or (len(owners) < len(named) and len(owners) != 2):
        raise RunError(
            f"the answer is about {len({*owners})} of the {len(named)} owners who were asked; nothing is shown"
        )


def _answer(connection: "Connection", job: "SubmittedJob") -> dict[str, Any]:
    """The answer of a finished job, as far as a server's word goes: plain values of a bounded size."""
    blob = connection.result(job.name).output.get(file_names.ANSWER)
    if blob is None:
        raise RunError(f"job {job.name} finished without an answer")
    if blob.size > MAX_ANSWER_BYTES:
        raise RunError(f"the answer has {blob.size} bytes; the limit is {MAX_ANSWER_BYTES}")
    with tempfile.TemporaryDirectory() as folder:
        path = connection.fetch(job.name, blob, BlobFolder(Path(folder)))
        return read_answer(path.read_bytes())


def read_answer(content: bytes) -> dict[str, Any]:
    """An answer that came from a server: an object of finite numbers, texts, lists and objects. Raises RunError."""
    try:
        values = json.loads(content)
        if not isinstance(values, dict):
            raise ValueError("it is not an object")
        _check_values(values, MAX_DEPTH)
    except (ValueError, RecursionError) as error:
        raise RunError(f"the server's answer cannot be read: {one_line(error)}") from error
    return values


def _check_values(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    if isinstance(value, dict):
        for key, held in value.items():
            _check_values(key, depth - 1)
            _check_values(held, depth - 1)
    elif isinstance(value, list):
        for held in value:
            _check_values(held, depth - 1)
    elif isinstance(value, str):
        value.encode()  # half a surrogate pair, which JSON can hold, is no text that can be written
        if len(value) > MAX_TEXT:
            raise ValueError(f"a text in it is longer than {MAX_TEXT} characters")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number in it is not finite")


def submit_question(
    kit: Path,
    question: "Question",
    *,
    owners: Sequence[str] = (),
    timeout: float = ANSWER_SECONDS,
    on_event: OnEvent = lambda event: None,
    on_line: OnLine = lambda line: None,
    folder: Path | None = None,
) -> DeployedAnswer:
    """`ask` with a person's kit."""
    from winnow.deploy.client.connection import connect  # noqa: PLC0415 - it imports this module

    with connect(kit, notify=on_line) as connection:
        return ask(
            connection, question, owners=owners, timeout=timeout, on_event=on_event, on_line=on_line, folder=folder
        )
