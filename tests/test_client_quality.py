"""Whose data are bad: what clients are asked, what is made of their answers, and what follows from a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replace_struct

from winnow.config.resolve import resolve
from winnow.core import Arrays, Assessed, ConfigError, Outcome, PolicyApplied, Rejected, Reply, Selected, Task
from winnow.core.events import ALARMS
from winnow.data import DataSet, from_arrays
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.explain.privacy_report import make_privacy_report
from winnow.learn.client_quality.assess_handler import AssessmentSettings
from winnow.learn.client_quality.assessment import ClientAssessment
from winnow.learn.client_quality.policy import QualityPolicy
from winnow.learn.client_quality.settings import QualitySettings
from winnow.learn.selection import SelectedClients
from winnow.runs.event_log import encode_event
from world import BASE, blobs, experiment, prepared

DEFAULTS = {key: value for key, value in BASE.items() if key != "quality"}
ALL = "quality.evidence=['inputs', 'columns', 'labels', 'updates']"
SPOILED = {0, 7}
"""The clients of the small world that get noise."""


def run(*sets: str, dataset: DataSet | None = None, **options: Any) -> PreparedRun:
    """A run in which clients are assessed after each of its few rounds, unless told otherwise."""
    wanted = resolve(DEFAULTS, sets=("rounds=2", "quality.assessments=5", *sets), **{"algorithm": "fedavg", **options})
    return prepare_run(wanted, RunInputs(dataset=dataset or blobs()))


def events(made: PreparedRun, kind: type | None = None) -> list[Any]:
    return [event for event in made.training.run(made.federation) if kind is None or isinstance(event, kind)]


def told(made: PreparedRun, client: int, **asked: Any) -> Reply:
    """What a client tells of its data, seen through the untrained model."""
    settings = AssessmentSettings(
        **{
            "blocks": ("representation", "columns", "outcomes"),
            "classes": 3,
            "edges": (),
            "min_rows": 2,
            "count_step": 1,
            "distinct_rows": True,
            **asked,
        }
    )
    with made.federation.dispatch([Task(name="assess", client=client, round=1, version=0, settings=settings)]) as sent:
        (reply,) = sent
    assert isinstance(reply, Reply)
    return reply


def forward(made: PreparedRun, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of the untrained network and of its first layer, worked out here."""
    first, second = (module for module in made.module.modules() if isinstance(module, torch.nn.Linear))
    hidden = x @ first.weight.T + first.bias
    return hidden.relu() @ second.weight.T + second.bias, hidden


@pytest.mark.parametrize("execution", ["loop", "native", "stacked"])
def test_a_client_tells_moments_of_its_samples_by_class(execution: str) -> None:
    with run(f"engine.execution={execution}") as made, torch.no_grad():
        reply = told(made, 3)
        rows = torch.as_tensor(made.simulation.site.data.cohort(np.array([3])).rows_of(3))
        x, y = made.simulation.site.data.cohort(np.array([3])).samples(rows)
        outputs, hidden = forward(made, x)
        loss = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
        predicted = torch.nn.functional.one_hot(outputs.argmax(1), 3).float()
        squashed = hidden / (1 + hidden.abs())
        wanted = {"representation": squashed, "columns": x, "outcomes": torch.cat([predicted, loss[:, None]], 1)}
        assert reply.payload["rows"]["distinct"].tolist() == [len(np.unique(x.numpy(), axis=0))]
        assert reply.payload.keys() == {*wanted, "rows"}
        for block, values in wanted.items():
            part = reply.payload[block]
            assert part["counts"].tolist() == np.bincount(y, minlength=3).tolist()
            for k in range(3):
                own = values[y == k].double().numpy()
                np.testing.assert_allclose(part["mean"][k], own.mean(0), rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(part["variance"][k], own.var(0), rtol=1e-3, atol=1e-5)


def test_of_few_samples_nothing_is_told_and_counts_are_coarse() -> None:
    with run() as made:
        exact = np.asarray(told(made, 3).payload["columns"]["counts"])
        fewest = int(np.sort(exact)[1])
        part = told(made, 3, min_rows=fewest, count_step=4).payload["columns"]
        assert part["counts"].tolist() == np.where(exact >= fewest, exact // 4 * 4, 0).tolist()
        hidden = part["counts"] == 0
        assert hidden.any()
        assert not part["mean"][hidden].any()
        assert not part["variance"][hidden].any()


def test_a_regression_is_told_by_bins_of_its_target() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    data = from_arrays(x, x @ rng.normal(size=(5, 2)).astype(np.float32), name="numbers", task="regression")
    with run("local.learning_rate=0.01", dataset=data) as made:
        reply = told(made, 3, classes=3, edges=(-0.5, 0.5))
        samples = made.simulation.site.data.cohort(np.array([3]))
        x, y = samples.samples(torch.as_tensor(samples.rows_of(3)))
        bins = np.digitize(y[:, 0], [-0.5, 0.5])
        assert reply.payload["outcomes"]["counts"].tolist() == np.bincount(bins, minlength=3).tolist()
        with torch.no_grad():
            errors = (forward(made, x)[0] - y).numpy()[bins == 1]
        np.testing.assert_allclose(reply.payload["outcomes"]["mean"][1, :2], errors.mean(0), rtol=1e-4, atol=1e-5)
        assert [len(event.clients) for event in events(made, Assessed)] == [8, 8]


def test_assessments_are_evenly_spread_and_the_last_follows_the_last_round() -> None:
    assert sorted(QualitySettings().assessment_rounds(50)) == [10, 20, 30, 40, 50]
    assert sorted(QualitySettings(assessments=5).assessment_rounds(3)) == [1, 2, 3]
    with run("rounds=4", "quality.assessments=2") as made:
        assert [event.round for event in events(made, Assessed)] == [2, 4]


def test_a_short_run_is_assessed_less_often_unless_a_number_is_set() -> None:
    def count(rounds: int, **settings: Any) -> int:
        return len(QualitySettings(**settings).assessment_rounds(rounds))

    assert [count(rounds) for rounds in (1, 5, 6, 14, 15, 1000)] == [1, 1, 2, 4, 5, 5]
    assert [count(rounds, assessments=4) for rounds in (1, 5, 1000)] == [1, 4, 4]
    assert QualitySettings(policy="exclude").assessment_rounds(5) == {3, 5}, "after the last round it is too late"


def test_a_policy_that_acts_does_so_early_in_a_long_run() -> None:
    assert min(QualitySettings().assessment_rounds(3000)) == 600, "nothing waits for a warning"
    acting = QualitySettings(policy="exclude")
    assert sorted(acting.assessment_rounds(3000)) == [10, 56, 383, 1271, 3000]
    assert acting.assessment_rounds(50) == QualitySettings().assessment_rounds(50)
    for times, rounds in ((2, 21), (5, 51), (100, 1001), (300, 3100)):
        due = QualitySettings(policy="down-weight", assessments=times).assessment_rounds(rounds)
        assert (len(due), min(due), max(due)) == (times, 10, rounds)


def test_spoiled_clients_stand_out() -> None:
    with run("rounds=4") as made:
        last = events(made, Assessed)[-1]
    alarmed = {k for k, verdict in zip(last.clients.tolist(), last.verdicts, strict=True) if verdict in ALARMS}
    assert alarmed == SPOILED
    assert all(last.evidence[k] for k in SPOILED)


def test_to_assess_clients_changes_no_model_and_no_selection() -> None:
    for algorithm in ("fedavg", "fedprof"):
        with run(algorithm=algorithm) as made, prepared("rounds=2", algorithm=algorithm) as plain:
            seen, unseen = (
                [
                    encode_event(replace(event, at=0.0))
                    for event in each.training.run(each.federation)
                    if isinstance(event, Selected)
                ]
                for each in (made, plain)
            )
            assert seen == unseen
            for name, tensor in made.training.model.items():
                assert torch.equal(tensor, plain.training.model[name])


def test_what_it_costs_is_charged_to_the_round() -> None:
    with run("rounds=1") as made, prepared("rounds=1", algorithm="fedavg") as plain:
        assessed, unassessed = events(made)[-1], events(plain)[-1]
    assert assessed.cost.profiling_seconds > 0 == unassessed.cost.profiling_seconds
    assert assessed.at > unassessed.at


@pytest.mark.parametrize(
    "sets",
    [("quality.policy=exclude",), ("quality.policy=down-weight",), (ALL.replace("]", ", 'contribution']"),)],
    ids=["exclude", "down-weight", "contribution"],
)
def test_a_run_that_was_interrupted_goes_on_as_it_would_have(sets: tuple[str, ...]) -> None:
    with run("rounds=4", *sets) as whole:
        log = [encode_event(event) for event in whole.training.run(whole.federation)]
    with run("rounds=4", *sets) as first:
        begun = []
        for event in first.training.run(first.federation):
            begun.append(encode_event(event))
            if event.kind == "round_finished" and event.round == 2:
                break
        wanted = resolve(DEFAULTS, sets=("rounds=4", "quality.assessments=5", *sets), algorithm="fedavg")
        with prepare_run(wanted, RunInputs(dataset=blobs()), snapshot=first.snapshot()) as second:
            assert begun + [encode_event(event) for event in second.training.run(second.federation)] == log
            for name, tensor in whole.training.model.items():
                assert torch.equal(tensor, second.training.model[name])


def test_workers_tell_the_same() -> None:
    with run("rounds=1") as alone, run("rounds=1", "engine.workers=2") as together:
        (one,), (other,) = events(alone, Assessed), events(together, Assessed)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)
    assert one.verdicts == other.verdicts


# Liars ----------------------------------------------------------------------------------------------------------------

Lie = Callable[[dict[str, Arrays]], dict[str, Any]]


def altered(block: str, name: str, change: Callable[[Any], Any]) -> Lie:
    def lie(payload: dict[str, Arrays]) -> dict[str, Any]:
        return {**payload, block: {**payload[block], name: change(np.array(payload[block][name]))}}

    return lie


LIES: dict[str, tuple[Lie, str]] = {
    "too many": (altered("columns", "counts", lambda a: a + 1000), "does not count the client's"),
    "fewer than none": (altered("columns", "counts", lambda a: a - 1000), "does not count the client's"),
    "overflowing": (altered("columns", "counts", lambda a: np.full_like(a, 2**62)), "does not count the client's"),
    "other counts": (altered("outcomes", "counts", np.zeros_like), "counts its samples in different ways"),
    "not finite": (altered("representation", "mean", lambda a: a * np.nan), "not finite"),
    "huge": (altered("representation", "mean", lambda a: a * 0 + 3e38), "not finite"),
    "negative": (altered("columns", "variance", lambda a: -1 - a), "negative variances"),
    "impossible shares": (altered("outcomes", "mean", lambda a: a + 2), "not between 0 and 1"),
    "shape": (altered("columns", "mean", lambda a: a[:, :-1]), "wrong shape or type"),
    "type": (altered("columns", "mean", lambda a: a.astype(np.float64)), "wrong shape or type"),
    "a name": (lambda payload: {**payload, "columns": {"counts": payload["columns"]["counts"]}}, "wrong shape or type"),
    "a part": (lambda payload: {**payload, "more": {"mean": np.zeros(3)}}, "unexpected part 'more'"),
    "nothing": (lambda _: {}, "carries no evidence"),
    "rows": (altered("rows", "distinct", lambda a: a + 1000), "cannot differ"),
    "rows of a kind": (altered("rows", "distinct", lambda a: a.astype(np.float32)), "wrong shape or type"),
    "no arrays": (lambda payload: {**payload, "columns": dict.fromkeys(payload["columns"], 3)}, "cannot be read"),
}


def test_evidence_that_cannot_be_is_rejected_and_the_others_are_assessed() -> None:
    """Each round has another four liars in it."""
    told_by = {(place // 4 + 1, place % 4 + 2): name for place, name in enumerate(LIES)}
    made = run(f"rounds={len(LIES) // 4}")
    honest = made.simulation.handlers["assess"]

    def lying(reply: Outcome) -> Outcome:
        name = told_by.get((reply.task.round, reply.task.client))
        if name is None or not isinstance(reply, Reply):
            return reply
        return replace_struct(reply, payload=LIES[name][0](dict(reply.payload)))

    made.simulation.handlers["assess"] = lambda tasks, site: [lying(reply) for reply in honest(tasks, site)]
    with made:
        log = events(made)
    rejected = {(event.round, event.client): event.reason for event in log if isinstance(event, Rejected)}
    assert rejected.keys() == told_by.keys()
    for place, name in told_by.items():
        assert LIES[name][1] in rejected[place]
    first = next(event for event in log if isinstance(event, Assessed))
    assert {k for k, verdict in enumerate(first.verdicts) if verdict == "cannot tell"} == {2, 3, 4, 5}
    assert [first.evidence[k] for k in (2, 3, 4, 5)] == [rejected[1, k] for k in (2, 3, 4, 5)]
    last = [event for event in log if isinstance(event, Assessed)][-1]
    assert {k for k, verdict in enumerate(last.verdicts) if verdict in ALARMS} == SPOILED


def test_a_metric_beside_the_evidence_is_rejected() -> None:
    made = run("rounds=1")
    honest = made.simulation.handlers["assess"]
    made.simulation.handlers["assess"] = lambda tasks, site: [
        replace_struct(reply, metrics={"secret": 1.0}) if isinstance(reply, Reply) else reply
        for reply in honest(tasks, site)
    ]
    with made:
        assert {event.reason for event in events(made, Rejected)} == {"the reply has an unexpected metric 'secret'"}


# Policies -------------------------------------------------------------------------------------------------------------


def test_excluded_clients_are_not_selected_again_and_every_exclusion_has_its_reason() -> None:
    with run("rounds=6", "quality.assessments=6", "quality.policy=exclude") as made:
        log = events(made)
    excluded = {event.client: event for event in log if isinstance(event, PolicyApplied)}
    assert excluded.keys() == SPOILED
    first = next(event for event in log if isinstance(event, Assessed))
    for client, event in excluded.items():
        assert (event.round, event.action) == (1, "exclude")
        assert event.reason == f"{first.verdicts[client]}: {first.evidence[client]}"
    for event in log:
        if isinstance(event, Selected) and event.round > 1:
            assert len(event.clients) == len(set(event.clients.tolist())) == 3
            assert SPOILED.isdisjoint(event.clients.tolist())


def test_a_client_that_is_kept_by_name_is_never_touched() -> None:
    owners = np.repeat([f"hospital {k}" for k in range(8)], 50)
    data = blobs()
    named = from_arrays(data.x, data.y, owners=owners, name="hospitals", scale="none")
    sets = ("rounds=1", "data.partition=natural", "quality.policy=exclude")
    with run(*sets, dataset=named) as made:
        touched = {event.client for event in events(made, PolicyApplied)}
    assert touched
    kept = made.client_names[min(touched)]
    with run(*sets, f"quality.keep=['{kept}', 'client {max(touched)}']", dataset=named) as made:
        told = {event.client: (event.action, event.reason) for event in events(made, PolicyApplied)}
    for client in touched:
        assert told[client][0] == ("keep" if client in (min(touched), max(touched)) else "exclude")
        assert told[client][1].startswith(("suspect: ", "harmful: "))


def test_to_keep_a_client_that_nobody_knows_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"quality.keep: there is no client 'clent 7'; did you mean 'client 7'\?"):
        run("quality.keep=['clent 7']")


def assessed(client: int, score: float, verdict: Any) -> ClientAssessment:
    return ClientAssessment(client=client, score=score, verdict=verdict, evidence="why", kinds=(), scores={})


def test_the_policy_readmits_and_leaves_a_cohort() -> None:
    policy = QualityPolicy("exclude", 4, frozenset(), min_clients=2)
    bad = [assessed(k, 1.0 + k, "suspect") for k in range(4)]
    assert [(client, action) for client, action, _ in policy.apply(bad)] == [(3, "exclude"), (2, "exclude")]
    everybody = SelectedClients(clients=np.arange(4), counts=np.array([1, 1, 2, 1]))
    assert policy.select(everybody, np.random.default_rng(0)).clients.tolist() == [0, 1]
    two = SelectedClients(clients=np.array([1, 3]), counts=np.array([1, 1]))
    assert policy.select(two, np.random.default_rng(0)).clients.tolist() == [0, 1]
    silent = [assessed(3, float("nan"), "cannot tell"), assessed(2, 0.5, "different")]
    assert list(policy.apply(silent)) == [(2, "readmit", "different: why")]
    again = QualityPolicy("exclude", 4, frozenset(), min_clients=2)
    again.restore(policy.state())
    assert again.select(everybody, np.random.default_rng(0)).clients.tolist() == [0, 1, 2]


def test_a_kept_client_is_told_of_once_and_counts_in_full() -> None:
    policy = QualityPolicy("exclude", 4, frozenset({3}), min_clients=3)
    bad = [assessed(2, 1.5, "suspect"), assessed(3, 2.0, "harmful")]
    assert list(policy.apply(bad)) == [(3, "keep", "harmful: why"), (2, "exclude", "suspect: why")]
    everybody = SelectedClients(clients=np.arange(4), counts=np.ones(4, np.int64))
    assert policy.select(everybody, np.random.default_rng(0)).clients.tolist() == [0, 1, 3]
    again = QualityPolicy("exclude", 4, frozenset({3}), min_clients=3)
    again.restore(policy.state())
    assert list(again.apply(bad)) == [], "nothing has changed"
    assert list(again.apply([assessed(3, 0.1, "fine")])) == []


def test_places_of_the_excluded_go_to_all_others_alike() -> None:
    policy = QualityPolicy("exclude", 6, frozenset(), min_clients=1)
    list(policy.apply([assessed(0, 2.0, "harmful")]))
    drawn = [
        policy.select(SelectedClients(clients=np.array([0, 1]), counts=np.array([1, 1])), np.random.default_rng(seed))
        for seed in range(2000)
    ]
    counts = np.bincount(np.concatenate([each.clients for each in drawn]), minlength=6)
    assert counts[:2].tolist() == [0, 2000]
    assert np.abs(counts[2:] - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)


def test_down_weighted_clients_count_less_in_the_mean() -> None:
    sets = ("rounds=2", "quality.assessments=2", "select.count=8", "quality.policy=down-weight")
    with run(*sets, algorithm="fedavg-rp") as made:
        gathered: list[Reply] = []
        course = made.training.run(made.federation)
        first = next(event for event in course if isinstance(event, Assessed))
        honest = made.simulation.handlers["train"]

        def watched(tasks: Sequence[Task], site: Any) -> Sequence[Outcome]:
            outcomes = honest(tasks, site)
            gathered.extend(outcome for outcome in outcomes if isinstance(outcome, Reply))
            return outcomes

        made.simulation.handlers["train"] = watched
        assert {event.client for event in course if isinstance(event, PolicyApplied)} == SPOILED
        sizes = made.federation.population.sizes
        factor = {k: 1 / (1 + first.scores[k]) if k in SPOILED else 1.0 for k in range(8)}
        weights = np.array([sizes[reply.task.client] * factor[reply.task.client] for reply in gathered])
        for name, tensor in made.training.model.items():
            stacked = np.stack([reply.payload["model"][name].numpy() for reply in gathered]).astype(np.float64)
            np.testing.assert_allclose(tensor, np.tensordot(weights / weights.sum(), stacked, 1), rtol=1e-4, atol=1e-6)


# What hides data ------------------------------------------------------------------------------------------------------

HIDING = {
    "collect.name = 'secure'": ("collect.name=secure",),
    "collect.name = 'homomorphic'": ("collect.name=homomorphic", "collect.key_holder=0"),
    "collect.name = 'central-dp'": ("collect={name='central-dp', clip=1.0, noise_multiplier=1.0}",),
    "client.name = 'dp-sgd'": ("client={name='dp-sgd', clip=1.0, noise_multiplier=1.0}", "local.momentum=0"),
    "filters.name = 'local-dp'": ("filters=[{name='local-dp', clip=1.0, noise_multiplier=1.0}]",),
    "filters.name = 'exclude'": ("filters=[{name='exclude', variables=['*']}]",),
    "filters.name = 'percentile'": ("filters=[{name='percentile', percentile=10}]",),
    "select.profile_comparison.name = 'noisy'": (
        "select.profile_comparison={name='noisy', clip=1.0, noise_multiplier=1.0}",
    ),
    "select.profile_comparison.name = 'encrypted'": ("select.profile_comparison=encrypted", "reference_clients=[0]"),
}
SEES_UPDATES = ("client.", "filters.", "select.")
"""Where the server gets updates all the same, to compare them tells nothing more."""


@pytest.mark.parametrize("setting", HIDING)
def test_what_hides_data_silences_evidence_and_refuses_it_by_name(setting: str) -> None:
    sets, algorithm = HIDING[setting], "fedprof" if setting.startswith("select") else "fedavg"
    quiet = resolve(DEFAULTS, sets=sets, algorithm=algorithm)
    assert quiet.quality.kinds(quiet.composed(), quiet.filters) == ()
    assert not any("evidence" in part for part in make_privacy_report(quiet).parts)
    for kind in ("inputs", "columns", "labels", "updates", "contribution"):
        asked = f"quality.evidence=['{kind}']"
        if kind in ("updates", "contribution") and setting.startswith(SEES_UPDATES):
            assert resolve(DEFAULTS, sets=(*sets, asked), algorithm=algorithm).quality.evidence == (kind,)
            continue
        with pytest.raises(ConfigError) as refusal:
            resolve(DEFAULTS, sets=(*sets, asked), algorithm=algorithm)
        assert str(refusal.value).endswith(f"quality.evidence: {kind} would tell what {setting} hides; remove it")


@pytest.mark.parametrize("setting", HIDING)
def test_a_policy_without_evidence_is_refused_with_a_way_out(setting: str) -> None:
    algorithm = "fedprof" if setting.startswith("select") else "fedavg"
    sets = (*HIDING[setting], "quality.policy=exclude")
    with pytest.raises(ConfigError) as refusal:
        resolve(DEFAULTS, sets=sets, algorithm=algorithm)
    if setting.startswith(SEES_UPDATES):
        way_out = f"needs evidence, of which {setting} leaves contribution, updates: set quality.evidence to some of it"
        assert resolve(DEFAULTS, sets=(*sets, "quality.evidence=['updates']"), algorithm=algorithm)
    else:
        way_out = f"cannot work with {setting}, which hides clients' data and updates; remove one or the other"
    assert str(refusal.value).endswith(f"quality.policy = 'exclude' {way_out}")


@pytest.mark.parametrize(
    ("sets", "algorithm", "message"),
    [
        (("quality.policy=exclude",), "safa", "cannot be used with schedule.name = 'lag-tolerant'"),
        (("quality.policy=down-weight",), "fedbuff", "cannot be used with schedule.name = 'buffered'"),
        (("quality.policy=down-weight",), "krum", "which does not let a client count less"),
        (("quality.policy=down-weight", "aggregate.weights=scheme-2"), "fedavg-rp", "does not let a client count less"),
        (("quality.policy=exclude", "quality.evidence=[]"), "fedavg", "quality.evidence = [] asks for none; remove it"),
        (("quality.evidence=['labels']",), "fedper", "'labels' cannot be had: the model has parts that are private"),
        (("quality.evidence=['contribution']", "reference_clients=[1]"), "fedavg", "clients hold the reference set"),
    ],
)
def test_what_cannot_work_is_one_line(sets: tuple[str, ...], algorithm: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        run(*sets, algorithm=algorithm)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_updates_alone_are_asked_of_nobody() -> None:
    with run("quality.evidence=['updates']", "rounds=1") as made:
        del made.simulation.handlers["assess"]
        (event,) = events(made, Assessed)
    assert len(event.clients) == 8


def test_clients_that_hold_the_reference_summarise_it() -> None:
    with run("reference_clients=[1, 2]", "rounds=2") as made:
        last = events(made, Assessed)[-1]
    alarmed = {k for k, verdict in zip(last.clients.tolist(), last.verdicts, strict=True) if verdict in ALARMS}
    assert alarmed == SPOILED


def test_without_a_summary_of_the_reference_nobody_is_judged() -> None:
    made = run("reference_clients=[1]", "rounds=1")
    made.simulation.handlers["summarise-reference"] = lambda tasks, site: [Reply(task=task) for task in tasks]
    with made:
        log = events(made)
    (event,) = [event for event in log if isinstance(event, Assessed)]
    assert set(event.verdicts) == {"cannot tell"}
    assert event.evidence[3] == "no client that holds the reference set told what it is like"
    assert "carries no summary" in next(event.reason for event in log if isinstance(event, Rejected))


def test_explain_says_what_each_kind_of_evidence_tells_and_costs() -> None:
    report = make_privacy_report(experiment(ALL, "quality.count_step=10", "rounds=12", algorithm="fedavg"))
    said = "\n".join(report.parts)
    for kind in ("inputs", "columns", "labels", "updates"):
        assert f"evidence on {kind}: the server" in said
    assert "evidence on contribution" not in said
    assert "4 times in a run: one download of the model and one forward pass" in said
    assert "rounded down to multiples of 10; of a class with fewer than 5 nothing is told" in said
    assert any("evidence on inputs, columns, labels" in line for line in report.parties[0].learns)
