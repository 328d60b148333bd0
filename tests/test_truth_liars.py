"""Participants, holders and servers that do not keep to the private protocol of truth discovery."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as changed

from crowd import Change, lying, made_up, run, terms_of
from winnow.analytics.truth.truth_methods import METHODS
from winnow.analytics.truth.truth_simulation import simulate_participants
from winnow.analytics.truth.truth_site import ADD, DEAL, AddTask, TruthSite
from winnow.analytics.truth.truth_terms import HEADER_BYTES
from winnow.analytics.truth.truth_vectors import discover_plainly
from winnow.analytics.truth.truth_workflow import TruthDiscovery
from winnow.analytics.truth.vector_shares import P
from winnow.core import Failure, Outcome, Rejected, Reply, Task

LIAR = 1


def to_holders(change: Callable[[bytes], bytes]) -> Change:
    def lie(task: Task, outcome: Outcome) -> Outcome:
        if task.client != LIAR or task.round != 2 or not isinstance(outcome, Reply):
            return outcome
        return changed(outcome, peer_messages={who: change(text) for who, text in outcome.peer_messages.items()})

    return lie


def outside_the_field(message: bytes) -> bytes:
    return message[:HEADER_BYTES] + b"\xff" * 4 + message[HEADER_BYTES + 4 :]


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (lambda message: message[:-4], "participant 1: 116 bytes of shares where 120 were expected"),
        (lambda message: message + b"\0" * 8, "participant 1: 128 bytes of shares where 120 were expected"),
        (lambda message: b"", "the message of participant 1 is of another round or estimate, or"),
        (outside_the_field, "participant 1: a share is not an element of the field"),
        (lambda message: message[:3] + b"?" + message[4:], "the message of participant 1 is of another round"),
    ],
    ids=["short", "long", "empty", "outside", "foreign"],
)
def test_a_participant_that_deals_nonsense_is_named(lie: Callable[[bytes], bytes], said: str) -> None:
    crowd = made_up(workers=6)
    terms = terms_of(crowd)
    workflow = TruthDiscovery(terms, 3)
    events = run(workflow, lying(simulate_participants(terms, crowd), DEAL, to_holders(lie)))
    assert workflow.stopped is not None
    assert said in workflow.stopped
    assert "\n" not in workflow.stopped
    assert workflow.round == 1, "the last estimate stands"
    assert all(said in event.reason for event in events if isinstance(event, Rejected))


def test_a_message_of_an_earlier_round_is_refused() -> None:
    crowd = made_up(workers=6)
    terms = terms_of(crowd)
    first: dict[int, bytes] = {}

    def repeat(task: Task, outcome: Outcome) -> Outcome:
        if task.client != LIAR or not isinstance(outcome, Reply):
            return outcome
        first.update({} if first else outcome.peer_messages)
        return changed(outcome, peer_messages=dict(first))

    workflow = TruthDiscovery(terms, 3)
    run(workflow, lying(simulate_participants(terms, crowd), DEAL, repeat))
    assert "the message of participant 1 is of another round" in (workflow.stopped or "")


@pytest.mark.parametrize("others", [{}, {0: b"x"}, {99: b"x"}])
def test_who_does_not_write_to_the_holders_alone_is_left_out_by_name(others: dict[int, bytes]) -> None:
    crowd = made_up(workers=6)
    terms = terms_of(crowd, holders=3)

    def lie(task: Task, outcome: Outcome) -> Outcome:
        return changed(outcome, peer_messages=others) if task.client == LIAR and isinstance(outcome, Reply) else outcome

    terms = replace(terms, holders=(2, 3, 4))
    workflow = TruthDiscovery(terms, 2)
    events = run(workflow, lying(simulate_participants(terms, crowd), DEAL, lie))
    (rejected,) = (event for event in events if isinstance(event, Rejected))
    assert (rejected.client, rejected.reason) == (1, "participant 1 did not write to the 3 holders alone")
    assert workflow.stopped is None
    assert LIAR not in workflow.present


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros(3, np.uint32), "participant 1 sent a sum that does not have 30 whole numbers"),
        (np.zeros(30, np.float64), "participant 1 sent a sum that does not have 30 whole numbers"),
        (np.full(30, P, np.uint32), "participant 1 sent a sum with a value outside the field"),
        (None, "participant 1 sent something else than a sum"),
    ],
)
def test_a_holder_that_sends_no_sum_is_left_out_by_name(values: np.ndarray | None, said: str) -> None:
    crowd = made_up(workers=6)
    terms = terms_of(crowd)

    def lie(task: Task, outcome: Outcome) -> Outcome:
        payload = {} if values is None else {"sum": {"values": values}}
        return changed(outcome, payload=payload) if task.client == LIAR and isinstance(outcome, Reply) else outcome

    workflow = TruthDiscovery(terms, 2)
    events = run(workflow, lying(simulate_participants(terms, crowd), ADD, lie))
    assert [event.reason for event in events if isinstance(event, Rejected)] == [said]
    assert workflow.stopped is None
    assert workflow.estimate is not None
    plain = discover_plainly(METHODS["logistic"], crowd, 2)
    assert workflow.estimate.confidence == pytest.approx(plain.confidence, abs=1e-4)


def test_a_wrong_sum_ends_the_run() -> None:
    crowd = made_up(workers=6)
    terms = terms_of(crowd)

    def lie(task: Task, outcome: Outcome) -> Outcome:
        if task.client != LIAR or not isinstance(outcome, Reply):
            return outcome
        return changed(outcome, payload={"sum": {"values": (outcome.payload["sum"]["values"] + np.uint32(1)) % P}})

    workflow = TruthDiscovery(terms, 2)
    run(workflow, lying(simulate_participants(terms, crowd), ADD, lie))
    assert workflow.stopped == "iteration 1: the holders' sums do not fit together: one of them is wrong"
    assert workflow.estimate is None


def test_a_holder_refuses_a_server_that_asks_for_another_sum() -> None:
    """Of fewer senders, of others in the same round, of strangers; the difference would be one participant's vector."""
    crowd = made_up(workers=6)
    terms = terms_of(crowd)
    site = TruthSite(terms, dict(enumerate(crowd.of_each_worker())))
    handlers = site.handlers()
    tasks = [Task(name=DEAL, client=client, round=1, version=0) for client in range(6)]
    dealt = [outcome.peer_messages for outcome in handlers[DEAL](tasks, None) if isinstance(outcome, Reply)]

    def asked(*senders: int, holder: int = 0) -> str:
        messages = {sender: dealt[sender][holder] for sender in senders if sender < 6}
        task = Task(name=ADD, client=holder, round=1, version=0, settings=AddTask(senders), peer_messages=messages)
        (outcome,) = handlers[ADD]([task], None)
        return outcome.reason if isinstance(outcome, Failure) else "added"

    assert asked(0, 1, 2) == "a sum over 3 senders tells too much of each; 4 are needed"
    assert asked(0, 1, 2, 9) == "the senders are not participants, or one of them is named twice"
    assert asked(0, 1, 2, 2) == "the senders are not participants, or one of them is named twice"
    assert asked(0, 1, 2, 3, 4, 5) == "added"
    assert asked(0, 1, 2, 3, 4) == "truth-add of round 1 was asked before"


def test_nobody_deals_or_adds_twice_in_a_round() -> None:
    """The second message of one participant would deal the change since the first, zeros: added in the place of the
    first, it makes a sum that differs by this participant's vector.
    """
    crowd = made_up(workers=6)
    handlers = TruthSite(terms_of(crowd), dict(enumerate(crowd.of_each_worker()))).handlers()
    dealt = handlers[DEAL]([Task(name=DEAL, client=client, round=1, version=0) for client in range(6)], None)
    state = dealt[LIAR].new_client_state
    again = Task(name=DEAL, client=LIAR, round=1, version=0, client_state=state)
    messages = {outcome.task.client: outcome.peer_messages[0] for outcome in dealt}
    add = Task(name=ADD, client=0, round=1, version=0, settings=AddTask((*range(6),)), peer_messages=messages)
    for name, task, first in ((DEAL, again, []), (ADD, add, [add])):
        handlers[name](first, None)
        (refused,) = handlers[name]([task], None)
        assert isinstance(refused, Failure)
        assert refused.reason == f"{name} of round 1 was asked before"


def test_a_holder_adds_none_but_those_who_were_told_the_same_estimate() -> None:
    """Trust of one half counts ln 2; with another estimate for one participant, sums that are no multiples of ln 2
    would be those of its items.
    """
    crowd = made_up(workers=6)
    terms = terms_of(crowd)
    handlers = TruthSite(terms, dict(enumerate(crowd.of_each_worker()))).handlers()

    def told(client: int, likely: float) -> Task:
        estimate = {"confidence": np.full((30, 1), likely), "shared": np.zeros(0)}
        return Task(name=DEAL, client=client, round=2, version=1, payload={"estimate": estimate})

    dealt = handlers[DEAL]([told(client, 0.9 if client == LIAR else 0.5) for client in range(6)], None)
    order = AddTask((*range(6),))
    said = {}
    for holder in range(6):
        messages = {outcome.task.client: outcome.peer_messages[holder] for outcome in dealt}
        task = Task(name=ADD, client=holder, round=2, version=1, settings=order, peer_messages=messages)
        (refused,) = handlers[ADD]([task], None)
        assert isinstance(refused, Failure)
        said[holder] = refused.reason
    foreign = "the message of participant {} is of another round or estimate, or for another holder"
    assert said == {holder: foreign.format(0 if holder == LIAR else LIAR) for holder in range(6)}


def test_a_holder_that_was_told_no_estimate_adds_nothing() -> None:
    crowd = made_up(workers=6)
    handlers = TruthSite(terms_of(crowd), dict(enumerate(crowd.of_each_worker()))).handlers()
    task = Task(name=ADD, client=0, round=1, version=0, settings=AddTask((*range(6),)))
    (refused,) = handlers[ADD]([task], None)
    assert isinstance(refused, Failure)
    assert refused.reason == "participant 0 is to add in round 1, in which it dealt nothing"


def test_a_holder_does_not_add_again_who_was_left_out() -> None:
    """With the same estimate twice, the two sums would differ by the vector of the one who came back."""
    crowd = made_up(workers=6)
    terms = terms_of(crowd)
    handlers = TruthSite(terms, dict(enumerate(crowd.of_each_worker()))).handlers()

    def asked(round: int, *senders: int) -> str:
        tasks = [Task(name=DEAL, client=client, round=round, version=round - 1) for client in senders]
        dealt = {outcome.task.client: outcome.peer_messages for outcome in handlers[DEAL](tasks, None)}
        messages = {sender: dealt[sender][0] for sender in senders}
        task = Task(name=ADD, client=0, round=round, version=0, settings=AddTask(senders), peer_messages=messages)
        (outcome,) = handlers[ADD]([task], None)
        return outcome.reason if isinstance(outcome, Failure) else "added"

    assert asked(1, 0, 1, 2, 3, 4) == "added"
    assert asked(2, 0, 1, 2, 3, 4, 5) == "participant 5 was left out before and is to be added again"
    assert asked(3, 0, 1, 2, 3) == "added"
    assert asked(4, 0, 1, 2, 3, 4) == "participant 4 was left out before and is to be added again"
    assert asked(5, 0, 1, 2, 3) == "added"


def test_a_participant_refuses_an_estimate_that_is_none() -> None:
    crowd = made_up(workers=6)
    terms = terms_of(crowd)
    handler = TruthSite(terms, dict(enumerate(crowd.of_each_worker()))).handlers()[DEAL]
    good = np.full((30, 1), 0.5)
    for confidence in (good[:5], good * np.nan, good * 9, -good, good.astype(np.float32)):
        payload = {"estimate": {"confidence": confidence, "shared": np.zeros(0)}}
        (outcome,) = handler([Task(name=DEAL, client=0, round=2, version=1, payload=payload)], None)
        assert isinstance(outcome, Failure)
        assert outcome.reason.startswith("the server's estimate")
