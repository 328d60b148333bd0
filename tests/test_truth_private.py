"""The private protocol of truth discovery: it finds what the plain method finds, and no more is told."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crowd import Change, crowd_set, lying, made_up, made_up_numbers, run, terms_of
from winnow.analytics.truth.answer_arrays import AnswerArrays
from winnow.analytics.truth.truth_methods import METHODS, TruthEstimate
from winnow.analytics.truth.truth_report import make_report
from winnow.analytics.truth.truth_simulation import discover_privately, simulate_participants
from winnow.analytics.truth.truth_site import ADD, DEAL, own_vector
from winnow.analytics.truth.truth_terms import HEADER_BYTES, TruthTerms
from winnow.analytics.truth.truth_vectors import discover_plainly
from winnow.analytics.truth.truth_workflow import TruthDiscovery
from winnow.analytics.truth.vector_shares import P, from_fixed_point, join_vector, split_vector, to_fixed_point
from winnow.core import AnyEvent, Failure, Outcome, Rejected, Reply, RoundFinished, Stopped, Task
from winnow.privacy.shares.errors import SharesError

# Shares ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, P - 1), min_size=1, max_size=5), st.integers(2, 140), st.data())
@settings(max_examples=25)
def test_any_t_shares_give_the_vector(secret: list[int], holders: int, data: st.DataObject) -> None:
    """Interpolated with Python's whole numbers; above 64 holders products are added in parts."""
    threshold = data.draw(st.integers(2, holders))
    values = np.array(secret, np.uint32)
    shares = split_vector(values, range(holders), threshold)
    chosen = data.draw(st.permutations(range(holders)))[:threshold]
    for place, expected in enumerate(secret):
        total = 0
        for i in chosen:
            weight = 1
            for j in chosen:
                weight = weight * (j + 1) * pow(j - i, -1, P) % P if i != j else weight
            total += int(shares[i, place]) * weight
        assert total % P == expected
    assert (join_vector({i: shares[i] for i in chosen}, threshold) == values).all()
    with pytest.raises(SharesError, match="too few"):
        join_vector({i: shares[i] for i in chosen[1:]}, threshold)


def test_a_wrong_share_shows_where_there_is_one_to_spare() -> None:
    shares = split_vector(np.arange(9, dtype=np.uint32), range(5), 3)
    shares[4, 7] ^= 1
    with pytest.raises(SharesError, match="do not fit together"):
        join_vector(dict(enumerate(shares[1:], start=1)), 3)


def test_fewer_than_t_shares_look_the_same_whatever_the_secret_is() -> None:
    """Two of three holders: each pair of shares is uniform, for zeros as for ones."""
    for secret in (0, 1):
        low, high = split_vector(np.full(40_000, secret, np.uint32), range(3), 3)[:2] / P
        assert np.histogram2d(low, high, bins=4)[0].std() < 4 * np.sqrt(40_000 / 16)
        assert abs(np.corrcoef(low, high)[0, 1]) < 0.03


@given(st.lists(st.floats(-6.9, 6.9), min_size=1, max_size=50))
def test_fixed_point_adds_signed_numbers(values: list[float]) -> None:
    bits = 21
    total = sum(int(to_fixed_point(np.array([value]), bits)[0]) for value in values) % P
    assert from_fixed_point(np.array([total], np.uint32), bits)[0] == pytest.approx(sum(values), abs=50 / 2**bits)


# Private equals plain -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holders", [None, 3])
@pytest.mark.parametrize("dropouts", ["kept", "adaptive"])
@pytest.mark.parametrize(("method", "classes"), [("sum", 2), ("logistic", 3), ("dawid-skene", 3), ("crh", 0)])
def test_private_equals_plain(method: str, classes: int, dropouts: str, holders: int | None) -> None:
    crowd = made_up(classes=classes) if classes else made_up_numbers()
    found = discover_privately(terms_of(crowd, method, holders=holders, dropouts=dropouts), crowd, iterations=6)
    plain = discover_plainly(METHODS[method], crowd, 6)
    assert found.estimate is not None
    assert np.abs(found.estimate.confidence - plain.confidence).max() <= 1e-4
    trust = [METHODS[method].trust(crowd, estimate) for estimate in (found.estimate, plain)]
    assert np.abs(trust[0] - trust[1]).max() <= 1e-5


@pytest.mark.parametrize("name", ["bluebird", "rte", "SP_amt", "MS"])
def test_private_equals_plain_on_real_crowds(name: str, data_directory: Path) -> None:
    crowd, _ = crowd_set(data_directory, name)
    method = METHODS["logistic"]
    found = discover_privately(terms_of(crowd.arrays, holders=4), crowd.arrays, iterations=5)
    plain = discover_plainly(method, crowd.arrays, 5)
    assert found.estimate is not None
    assert np.abs(found.estimate.confidence - plain.confidence).max() <= 1e-4
    assert np.abs(method.trust(crowd.arrays, found.estimate) - method.trust(crowd.arrays, plain)).max() <= 1e-5
    assert make_report(crowd, method, found.estimate, 5).truth == make_report(crowd, method, plain, 5).truth


def test_messages_have_the_same_length_whoever_answers_what() -> None:
    """4 bytes an entry and a header; an exchange with k holders costs a sender k of them."""
    crowd = made_up(workers=5, share=0.4)
    terms = terms_of(crowd, "sum", holders=3)
    lengths = []

    def look(task: Task, outcome: Outcome) -> Outcome:
        assert isinstance(outcome, Reply)
        lengths.extend(map(len, outcome.peer_messages.values()))
        return outcome

    federation = lying(simulate_participants(terms, crowd), DEAL, look)
    events = run(TruthDiscovery(terms, 2), federation)
    assert {*lengths} == {HEADER_BYTES + 4 * 2 * crowd.item_count}
    cost = next(event.cost for event in events if isinstance(event, RoundFinished))
    assert cost.sent_bytes == sum(lengths) / 2 + 3 * 4 * terms.length


# Dropouts -------------------------------------------------------------------------------------------------------------


def confidence_with_kept_vectors(terms: TruthTerms, crowd: AnswerArrays, events: Sequence[AnyEvent]) -> np.ndarray:
    """If each participant's last vector stays in the sums, worked out without shares."""
    own, last, estimate = crowd.of_each_worker(), {}, None
    for event in events:
        if isinstance(event, RoundFinished):
            for client in event.aggregated.tolist():
                last[client] = own_vector(terms, own[client], estimate).astype(np.int64)
            total = np.sum([*last.values()], axis=0) % P
            sums = from_fixed_point(total.astype(np.uint32), terms.bits).reshape(terms.items, -1)
            confidence = METHODS[terms.method_name].confidence(sums, np.zeros(0), estimate)
            estimate = TruthEstimate(confidence=confidence, shared=np.zeros(0))
    assert estimate is not None
    return estimate.confidence


def test_who_leaves_stays_in_the_sums_with_the_last_vector() -> None:
    crowd = made_up(workers=40, items=20, share=0.3)
    terms, events = terms_of(crowd, threshold=12), []
    found = discover_privately(terms, crowd, dropout=0.08, seed=3, on_event=events.append)
    assert found.stopped is None
    assert len(found.present) < 30
    assert any(isinstance(event, Rejected) and "dropped out" in event.reason for event in events)
    assert found.estimate is not None
    assert found.estimate.confidence == pytest.approx(confidence_with_kept_vectors(terms, crowd, events), abs=1e-12)


@pytest.mark.parametrize(
    ("staying", "ends"), [(4, None), (3, "iteration 3: 3 participants dealt shares; 4 are needed")]
)
def test_t_holders_open_a_sum_and_fewer_abandon_it(staying: int, ends: str | None) -> None:
    crowd = made_up(workers=8)
    terms = terms_of(crowd, threshold=4)

    def leave(task: Task, outcome: Outcome) -> Outcome:
        gone = task.round == 3 and task.client >= staying
        return Failure(task=task, stage="training", reason="the client dropped out") if gone else outcome

    workflow = TruthDiscovery(terms, 3)
    events = run(workflow, lying(simulate_participants(terms, crowd), DEAL, leave))
    assert workflow.stopped == ends
    assert workflow.round == (3 if ends is None else 2)
    assert isinstance(events[-1], RoundFinished if ends is None else Stopped)
    if ends is not None:
        assert workflow.estimate is not None
        plain = discover_plainly(METHODS["logistic"], crowd, 2)
        assert workflow.estimate.confidence == pytest.approx(plain.confidence, abs=1e-4)


def test_holders_who_do_not_add_are_missed_only_below_t() -> None:
    crowd = made_up(workers=9)
    terms = terms_of(crowd, holders=5, threshold=3)

    def silent(count: int) -> Change:
        return lambda task, outcome: (
            Failure(task=task, stage="waiting", reason="no answer") if task.client in terms.holders[:count] else outcome
        )

    for count, stopped in ((2, None), (3, "iteration 1: 2 of 5 holders added shares; 3 are needed (no answer)")):
        workflow = TruthDiscovery(terms, 2)
        run(workflow, lying(simulate_participants(terms, crowd), ADD, silent(count)))
        assert workflow.stopped == stopped


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been() -> None:
    crowd = made_up(workers=12)
    terms = terms_of(crowd, holders=5)
    whole = discover_privately(terms, crowd, iterations=5, dropout=0.05, seed=1)
    federation = simulate_participants(terms, crowd, dropout=0.05, seed=1)
    run(first := TruthDiscovery(terms, 2), federation)
    second = TruthDiscovery(terms, 5)
    second.restore(first.snapshot())
    run(second, federation)
    assert whole.estimate is not None
    assert second.estimate is not None
    assert (second.estimate.confidence == whole.estimate.confidence).all()
    assert second.present == whole.present


def found_tasks(crowd: AnswerArrays, leaver: int, dropouts: str, leaves_in: int) -> float:
    """The difference attack: the share of a leaver's items among as many whose sums changed most when it left."""
    terms = replace(terms_of(crowd, "sum", holders=3, dropouts=dropouts), holders=(6, 7, 8))
    shares: dict[int, dict[int, np.ndarray]] = {}

    def leave(task: Task, outcome: Outcome) -> Outcome:
        gone = task.round >= leaves_in and task.client == leaver
        return Failure(task=task, stage="training", reason="the client dropped out") if gone else outcome

    def watch(task: Task, outcome: Outcome) -> Outcome:
        assert isinstance(outcome, Reply)
        shares.setdefault(task.round, {})[task.client] = outcome.payload["sum"]["values"]
        return outcome

    run(TruthDiscovery(terms, leaves_in), lying(lying(simulate_participants(terms, crowd), DEAL, leave), ADD, watch))
    before, after = (
        from_fixed_point(join_vector(shares[number], terms.threshold), terms.bits).reshape(terms.items, -1)[:, -1]
        for number in (leaves_in - 1, leaves_in)
    )
    tasks = {*crowd.items[crowd.workers == leaver].tolist()}
    return len(tasks & {*np.argsort(-np.abs(after - before))[: len(tasks)].tolist()}) / len(tasks)


def test_two_successive_sums_do_not_give_a_leaver_away() -> None:
    """They do with the paper's update: it sums over those who are left."""
    crowd = made_up(workers=30, items=150, share=0.15)
    guessed = np.mean([np.mean(crowd.workers == leaver) * len(crowd.items) / 150 for leaver in range(6)])
    assert np.mean([found_tasks(crowd, leaver, "adaptive", 9) for leaver in range(6)]) > 0.95
    assert np.mean([found_tasks(crowd, leaver, "kept", 9) for leaver in range(6)]) <= guessed + 0.05
