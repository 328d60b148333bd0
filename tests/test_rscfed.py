"""RSCFed: the mean teacher at a client and the consensus at the server, written out."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from few_label_clients import CLIENTS, WAYS, assert_cohort, changed, epochs_of, training, world
from winnow.core import ConfigError, Population, stream
from winnow.learn.aggregation import Contribution
from winnow.learn.algorithms.rscfed import STEPS, TEACHER, ConsensusAggregation, MeanTeacherUpdate
from winnow.learn.augment import weak
from winnow.learn.stack import TensorData
from world import experiment


def by_hand(model: nn.Module, data: TensorData, client: int, method: MeanTeacherUpdate) -> tuple[Any, Any]:
    student, teacher, own = deepcopy(model), deepcopy(model), data.rows_of(client)
    known = data.y[own].numpy() >= 0
    steps = 2 * max(-(-known.sum() // 8), -(-(~known).sum() // 8))
    labelled, others = epochs_of(own[known], 8, steps, client), epochs_of(own[~known], 8, steps, client, "phase 1")
    optimiser = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.5)
    for step in range(steps):
        optimiser.zero_grad()
        loss, (x, u) = torch.zeros(()), (torch.from_numpy(rows[step]) for rows in (labelled, others))
        if len(x):
            near = changed(weak, "weak labelled", data.x[x], client, step, 8)
            loss = loss + functional.cross_entropy(student(near), data.y[x])
        if len(u):
            with torch.no_grad():
                p = teacher(changed(weak, "weak teacher", data.x[u], client, step, 8)).softmax(1).square()
            q = student(changed(weak, "weak student", data.x[u], client, step, 8)).softmax(1)
            loss = loss + method.factor * (q - p / p.sum(1, keepdim=True)).square().sum(1).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), method.clip)
        optimiser.step()
        for slow, quick in zip(teacher.parameters(), student.parameters(), strict=True):
            average = min(1 - 1 / (step + 1), method.average)
            slow.data = average * slow.data + (1 - average) * quick.data
    return dict(student.state_dict()), dict(teacher.state_dict())


@pytest.mark.parametrize("way", WAYS)
def test_unlabelled_samples_follow_a_mean_teacher(way: str) -> None:
    model, data = world()
    method = MeanTeacherUpdate(factor=2.0, temperature=0.5, average=0.8, clip=0.4)
    result = method.update(training(model, data, way))
    expected = [by_hand(model, data, client, method) for client in CLIENTS.tolist()]
    assert_cohort(result, [student for student, _ in expected])
    for place, (_, teacher) in enumerate(expected):
        for name, tensor in teacher.items():
            torch.testing.assert_close(result.keep[TEACHER][name][place], tensor, rtol=1e-4, atol=1e-5)
    assert result.metrics["labelled"].tolist() == pytest.approx([0, 9 / 25, 11 / 35])


def test_a_client_goes_on_with_the_teacher_that_it_kept() -> None:
    model, data = world()
    method = MeanTeacherUpdate(factor=2.0, average=0.9)
    first = method.update(training(model, data, "stacked", np.array([2])))
    kept = {TEACHER: {name: tensor[0] for name, tensor in first.keep[TEACHER].items()}}
    again, anew = (
        method.update(training(model, data, "stacked", np.array([2]), round=3, stored=(state,))) for state in (kept, {})
    )
    assert not torch.equal(again.model["0.weight"], anew.model["0.weight"])


def test_a_teacher_counts_its_steps_through_all_rounds() -> None:
    """Otherwise the first step of each round would put the student in the teacher's place."""
    model, data = world()
    method, client = MeanTeacherUpdate(factor=2.0), np.array([2])
    first = method.update(training(model, data, "stacked", client))
    kept = {TEACHER: {name: tensor[0] for name, tensor in first.keep[TEACHER].items()}}
    again = method.update(training(model, data, "stacked", client, round=3, stored=(kept,)))
    steps = int(first.trained.steps[0])
    assert first.keep[TEACHER][STEPS].tolist() == [steps]
    assert again.keep[TEACHER][STEPS].tolist() == [2 * steps]


def test_groups_agree_on_weights_by_distance() -> None:
    rng, sizes = np.random.default_rng(0), np.array([40, 10, 25, 30, 60, 5])
    models = [{"w": rng.normal(size=(3, 2)), "b": rng.normal(size=3)} for _ in sizes]
    labelled = np.array([1, 0, 0, 0, 0.5, 0])
    rule = ConsensusAggregation(groups=2, group_size=3, beta=40.0, labelled_beta=7.0, labelled_weight=6.0)
    like = {"w": torch.zeros(3, 2), "b": torch.zeros(3)}
    fold = rule.start(like, Population(sizes=sizes), 6, stream(1, "aggregate", 2))
    for client, model in enumerate(models):
        tensors = {name: torch.tensor(value, dtype=torch.float32) for name, value in model.items()}
        fold.add(Contribution(model=tensors, client=client, metrics={"labelled": float(labelled[client])}))
    found, draws = fold.finish(), stream(1, "aggregate", 2)
    means = []
    for _ in range(2):
        group = np.sort(draws.permutation(6)[:3])
        n = sizes[group]
        v = n * np.where(labelled[group] > 0, 6.0, 1.0)
        centre = {name: sum(a * models[i][name] for a, i in zip(n, group, strict=True)) / n.sum() for name in like}
        apart = [sum(np.linalg.norm(models[i][name] - centre[name]) for name in like) for i in group]
        beta = 7.0 if (labelled[group] > 0).any() else 40.0
        w = v * np.exp(-beta * np.array(apart) / sizes[group])
        means.append({name: sum(a * models[i][name] for a, i in zip(w, group, strict=True)) / w.sum() for name in like})
    for name in like:
        np.testing.assert_allclose(found[name].numpy(), (means[0][name] + means[1][name]) / 2, rtol=1e-4, atol=1e-5)


def test_secure_aggregation_refuses_it_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"'consensus' needs every update and belongs to client\.name = 'mean-teacher'"
    ):
        experiment("collect.name=secure", algorithm="rscfed")


def test_in_the_first_rounds_clients_without_labels_stay_out() -> None:
    model, data = world()
    first, later = (
        MeanTeacherUpdate(warmup_rounds=rounds).update(training(model, data, "stacked")).stay_out for rounds in (2, 1)
    )
    assert list(first) == [0], "client 2, which has none, in the second round"
    assert not later
