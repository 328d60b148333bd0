"""A site's side of a private set intersection. The site decides what it reveals, not the server."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from winnow.core import Failure, Handler, Outcome, Reply, Task
from winnow.core.message_decoding import UnreadableError
from winnow.privacy.set_intersection.padded_list import padded, unpadded
from winnow.privacy.set_intersection.psi_protocol import PsiMessageError, PsiQuery, Reveal, answer_query

Site = TypeVar("Site")
OnIntersection: TypeAlias = Callable[[int, list[str]], object]

QUERY = "intersect-query"
ANSWER = "intersect-answer"
INTERSECT = "intersect-decode"
FINISH = "intersect-finish"
SHARE_RESULT = "intersect-share-result"

MAX_IDENTIFIERS = 1_000_000


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
            SHARE_RESULT: self._receive_result,
        }
        return {name: partial(_answer_each, step) for name, step in steps.items()}

    def _ask(self, task: Task, site: Site) -> Reply:
        """A query to another client about all identifiers, or those found to be common so far."""
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
        """The server gets the number of common identifiers; which they are is sent at most to the other sites."""
        client = task.client
        if client not in self._size:
            raise PsiMessageError("this client has computed no intersection yet")
        messages = {}
        if self._reveal == "intersection":
            self._found(client, self._common[client])
            result = padded(self._common[client], self._own(site, client))
            messages = dict.fromkeys(self._partners[client], result) if self._share else {}
        return Reply(task=task, metrics={"size": float(self._size[client])}, peer_messages=messages)

    def _receive_result(self, task: Task, site: Site) -> Reply:
        """The result that the querying site shares; it may only contain identifiers of this client."""
        own = {*self._own(site, task.client)}
        for message in task.peer_messages.values():
            try:
                common = unpadded(message)
            except UnreadableError as error:
                raise PsiMessageError("the shared result cannot be read") from error
            if not own.issuperset(common):
                raise PsiMessageError("the shared result has an identifier that this client does not have")
            self._found(task.client, common)
        return Reply(task=task)

    def _own(self, site: Site, client: int) -> list[str]:
        return sorted({*self._identifiers(site, client)})


def _answer_each(step: Callable[[Task, Site], Reply], tasks: Sequence[Task], site: Site) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for task in tasks:
        try:
            outcomes.append(step(task, site))
        except PsiMessageError as error:
            outcomes.append(Failure(task=task, stage=f"answering {task.name}", reason=str(error)))
    return outcomes
