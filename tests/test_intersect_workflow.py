"""Set intersection between sites: right, exact, and nobody learns more than the page says."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import winnow
from winnow.core import ConfigError, Failure, Outcome, Population, Reply, RoundFinished, SiteError, Task
from winnow.experiment.run_workflow import HostedClients
from winnow.fleet import Devices
from winnow.privacy.set_intersection import SetIntersection, SetIntersectionSite
from winnow.privacy.set_intersection.site import ANSWER, INTERSECT, QUERY
from winnow.simulate import SimulatedFederation

LISTS = [
    [f"patient {i}" for i in range(60)],
    [f"patient {i}" for i in range(0, 60, 2)],
    [f"patient {i}" for i in range(0, 90, 3)],
]
Lists = list[list[str]]


def federation(lists: Lists, **settings: Any) -> tuple[SimulatedFederation[Lists], dict[int, list[str]]]:
    """Sites with these identifiers, and a notebook of what each has found."""
    found: dict[int, list[str]] = {}
    sites: SetIntersectionSite[Lists] = SetIntersectionSite(
        lambda own, client: own[client], found.__setitem__, **settings
    )
    count = len(lists)
    here = SimulatedFederation(
        site=lists,
        handlers=sites.handlers(),
        population=Population(sizes=np.ones(count, np.int64)),
        fleet=Devices().draw(count, 0, sample_bits=1, corrupted=np.zeros(count, bool)),
    )
    return here, found


def run(workflow: SetIntersection, lists: Lists, **settings: Any) -> dict[int, list[str]]:
    here, found = federation(lists, **settings)
    (end,) = list(workflow.run(here))
    assert isinstance(end, RoundFinished)
    assert end.metrics == {"intersection": {"size": workflow.size}}
    return found


def common(lists: Iterable[list[str]]) -> list[str]:
    first, *others = (set(each) for each in lists)
    return sorted(first.intersection(*others))


@pytest.mark.parametrize("clients", [[0, 1], [1, 2], [0, 1, 2], [2, 0, 1]])
def test_the_first_site_learns_what_all_have_in_common(clients: list[int]) -> None:
    workflow = SetIntersection(clients=clients)
    expected = common(LISTS[client] for client in clients)
    assert run(workflow, LISTS) == {clients[0]: expected}
    assert workflow.size == len(expected)


def test_what_is_shared_reaches_every_site() -> None:
    expected = common(LISTS)
    assert run(SetIntersection(), LISTS, share=True) == {0: expected, 1: expected, 2: expected}


def test_only_the_size_is_told_if_that_is_what_sites_reveal() -> None:
    workflow = SetIntersection(clients=[0, 1], reveal="size")
    assert run(workflow, LISTS, reveal="size", share=True) == {}
    assert workflow.size == 30


@pytest.mark.parametrize("lists", [[["a"], ["b"]], [[], ["b"]], [["a"], []], [["a", "a", "ä"], ["ä", "a", "c", "c"]]])
def test_nothing_in_common_no_identifiers_and_repeated_ones(lists: Lists) -> None:
    assert run(SetIntersection(), lists) == {0: common(lists)}


def test_the_server_carries_messages_without_an_identifier_in_them() -> None:
    here, _ = federation(LISTS)
    watched: list[Reply] = []
    ask = here.dispatch

    def dispatch(tasks: Iterable[Task], *until: Any) -> Any:
        sent = list(tasks)
        watched.extend(Reply(task=task, peer_messages=task.peer_messages) for task in sent)
        return ask(sent, *until)

    here.dispatch = dispatch  # type: ignore[method-assign]
    list(SetIntersection().run(here))
    carried = b"".join(message for reply in watched for message in reply.peer_messages.values())
    assert len(carried) > 30 * (60 + 30)
    assert b"patient" not in carried


def lengths(lists: Lists, **settings: Any) -> list[list[int]]:
    """Of all messages, in order, as the server carries them."""
    here, _ = federation(lists, **settings)
    ask, seen = here.dispatch, []

    def dispatch(tasks: Iterable[Task], *until: Any) -> Any:
        sent = list(tasks)
        seen.extend([len(message) for message in task.peer_messages.values()] for task in sent)
        return ask(sent, *until)

    here.dispatch = dispatch  # type: ignore[method-assign]
    list(SetIntersection().run(here))
    return seen


@pytest.mark.parametrize("share", [False, True])
def test_lengths_tell_how_many_each_has_and_not_how_many_they_share(share: bool) -> None:
    """Nor which: identifiers are of different lengths."""
    first, third = [f"{'x' * i} {i}" for i in range(30)], [f"{'x' * i} {i}" for i in range(0, 90, 3)]
    strangers = [f"nobody {i}" for i in range(30)]
    found = [
        lengths([first, second, third], share=share) for second in (first, [*first[:7], *strangers[7:]], strangers)
    ]
    assert found[0] == found[1] == found[2]


def answers(here: SimulatedFederation[Lists], *tasks: Task) -> list[Outcome]:
    with here.dispatch(tasks) as exchange:
        return list(exchange)


def task(name: str, client: int, **more: Any) -> Task:
    return Task(name=name, client=client, round=1, version=0, **more)


def test_a_site_answers_once_about_few_and_only_what_it_reveals() -> None:
    here, _ = federation(LISTS, most=50)
    with pytest.raises(SiteError, match="64 identifiers; this site accepts at most 56"):
        list(SetIntersection(clients=[0, 1]).run(here))
    here, _ = federation(LISTS)
    (asked,) = answers(here, task(QUERY, 0, settings=1))
    question = {0: asked.peer_messages[1]}
    assert isinstance(answers(here, task(ANSWER, 1, peer_messages=question))[0], Reply)
    (again,) = answers(here, task(ANSWER, 1, peer_messages=question))
    assert isinstance(again, Failure)
    assert again.reason == "this client has already answered a query"
    careful, _ = federation(LISTS, reveal="size")
    (refused,) = answers(careful, task(ANSWER, 1, peer_messages=question))
    assert isinstance(refused, Failure)
    assert 'another thing than the "size"' in refused.reason


@pytest.mark.parametrize("message", [b"", b"nonsense", b"\x93\x01\x02\x03"])
def test_messages_that_are_none_are_refused_in_one_line(message: bytes) -> None:
    here, _ = federation(LISTS)
    (asked,) = answers(here, task(QUERY, 0, settings=1))
    (found,) = answers(here, task(INTERSECT, 0, peer_messages={1: message}))
    assert isinstance(found, Failure)
    if message:
        (answered,) = answers(here, task(ANSWER, 1, peer_messages={0: message}))
        assert isinstance(answered, Failure)
    (unasked,) = answers(here, replace(asked.task, name=INTERSECT))
    assert isinstance(unasked, Failure)


@pytest.mark.parametrize("clients", [[0], [0, 0], [0, 9]])
def test_parties_that_cannot_be_are_refused(clients: list[int]) -> None:
    with pytest.raises(ConfigError, match="two or more different ones out of 0 to 2"):
        list(SetIntersection(clients=clients).run(federation(LISTS)[0]))


def test_the_size_alone_takes_two() -> None:
    with pytest.raises(ConfigError, match="takes two clients, not 3"):
        list(SetIntersection(reveal="size").run(federation(LISTS)[0]))


def test_it_is_conducted_over_clients_data() -> None:
    """Rows as identifiers: clients hold different rows, so only repeated ones can be in common."""

    def identifiers(site: HostedClients, client: int) -> list[str]:
        return [f"age {int(row.sum()) // 10}" for row in site.examples(client).x]

    kept: dict[int, list[str]] = {}
    sites = SetIntersectionSite(identifiers, kept.__setitem__)
    workflow = SetIntersection()
    winnow.run_workflow(workflow, sites.handlers(), data={"name": "digits", "clients": 3})
    assert workflow.size == len(kept[0]) > 0
