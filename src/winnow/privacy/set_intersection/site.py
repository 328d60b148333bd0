"""What a site does in a set intersection. What it reveals is its own decision, not the server's."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import msgspec

from winnow.core import Failure, Handler, Outcome, Reply, Task
from winnow.core.decode import UnreadableError, from_msgpack
from winnow.privacy.set_intersection.psi_protocol import PsiMessageError, PsiQuery, Reveal, answer_query

Site = TypeVar("Site")
OnIntersection: TypeAlias = Callable[[int, list[str]], object]

QUERY = "intersect-query"
ANSWER = "intersect-answer"
INTERSECT = "intersect-decode"
FINISH = "intersect-finish"
SHARE_RESULT = "intersect-share-result"

MAX_IDENTIFIERS = 1_000_000
LENGTH_BYTES = 8
"""Bytes that say how long what follows is."""


class SetIntersectionSite(Generic[Site]):
    """The handlers of a site.

    `identifiers` gives those of a client of the site. `found` is called at the site with what all have in common: at
    the site that asks, and, if that one would `share`, at the others. To `reveal` "size" is to tell nobody more than
    how many there are. Nobody is answered about more than `most` identifiers, nor twice: whoever may ask about every
    identifier there could be, learns all that a site has.
    """

    def __init__(
        self,
        identifiers: Callable[[Site, int], Iterable[str]],
        found: OnIntersection = lambda client, identifiers: None,
        *,
        reveal: Reveal = "intersection",
        share: bool = False,
        most: int = MAX_IDENTIFIERS,
    ) -> None:
        self._identifiers, self._found = identifiers, found
        self._reveal, self._share, self._most = reveal, share, most
        self._asking: dict[int, tuple[int, PsiQuery]] = {}
        self._common: dict[int, list[str]] = {}
        self._size: dict[int, int] = {}
        self._partners: dict[int, list[int]] = {}
        self._answered: set[int] = set()

    def handlers(self) -> dict[str, Handler[Site]]:
        steps = {
            QUERY: self._ask,
            ANSWER: self._answer,
            INTERSECT: self._find,
            FINISH: self._end,
            SHARE_RESULT: self._tell,
        }
        return {name: partial(_answer_each, step) for name, step in steps.items()}

    def _ask(self, task: Task, site: Site) -> Reply:
        """A question to another client about all identifiers, or those that were found in common so far."""
        if not isinstance(task.settings, int):
            raise PsiMessageError("the task does not say which client to query")
        client, other = task.client, task.settings
        mine = self._common[client] if client in self._common else self._own(site, client)
        asking = PsiQuery(mine, self._reveal, len(self._own(site, client)))
        self._asking[client] = (other, asking)
        return Reply(task=task, peer_messages={other: asking.request()})

    def _answer(self, task: Task, site: Site) -> Reply:
        if task.client in self._answered:
            raise PsiMessageError("this client has already answered a query")
        if len(task.peer_messages) != 1:
            raise PsiMessageError("expected exactly one query, from one client")
        ((asker, question),) = task.peer_messages.items()
        given = answer_query(question, self._own(site, task.client), self._reveal, self._most)
        self._answered.add(task.client)
        return Reply(task=task, peer_messages={asker: given})

    def _find(self, task: Task, site: Site) -> Reply:
        client = task.client
        if client not in self._asking:
            raise PsiMessageError("this client has sent no query")
        other, asking = self._asking.pop(client)
        if other not in task.peer_messages:
            raise PsiMessageError(f"client {other} has sent no answer")
        if self._reveal == "size":
            self._size[client] = asking.size(task.peer_messages[other])
        else:
            self._common[client] = asking.found(task.peer_messages[other])
            self._size[client] = len(self._common[client])
        self._partners.setdefault(client, []).append(other)
        return Reply(task=task)

    def _end(self, task: Task, site: Site) -> Reply:
        """How many were found goes to the server; which they are, at most to the other sites, in letters."""
        client = task.client
        if client not in self._size:
            raise PsiMessageError("this client has computed no intersection yet")
        letters = {}
        if self._reveal == "intersection":
            self._found(client, self._common[client])
            told = _as_long_as(self._own(site, client), self._common[client])
            letters = dict.fromkeys(self._partners[client], told) if self._share else {}
        return Reply(task=task, metrics={"size": float(self._size[client])}, peer_messages=letters)

    def _tell(self, task: Task, site: Site) -> Reply:
        """What the asking site shares; only what one's own list holds, too."""
        own = {*self._own(site, task.client)}
        for letter in task.peer_messages.values():
            try:
                told = from_msgpack(letter[LENGTH_BYTES:][: int.from_bytes(letter[:LENGTH_BYTES])], list[str])
            except UnreadableError as error:
                raise PsiMessageError("the shared result cannot be read") from error
            if not own.issuperset(told):
                raise PsiMessageError("the shared result has an identifier that this client does not have")
            self._found(task.client, told)
        return Reply(task=task)

    def _own(self, site: Site, client: int) -> list[str]:
        return sorted({*self._identifiers(site, client)})


def _as_long_as(all_: list[str], some: list[str]) -> bytes:
    """Some of the identifiers, written so that the length is the same whichever they are."""
    told = msgspec.msgpack.encode(some)
    return len(told).to_bytes(LENGTH_BYTES) + told.ljust(len(msgspec.msgpack.encode(all_)), b"\0")


def _answer_each(step: Callable[[Task, Site], Reply], tasks: Sequence[Task], site: Site) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for task in tasks:
        try:
            outcomes.append(step(task, site))
        except PsiMessageError as error:
            outcomes.append(Failure(task=task, stage=f"answering {task.name}", reason=str(error)))
    return outcomes
