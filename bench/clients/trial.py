"""One run of Winnow on a federation of which some clients have bad data: what it says of them, and what others do."""

from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from bench.clients.observations import RunObservations, recorded_rounds
from bench.clients.rivals import RIVALS
from bench.clients.scenarios import REFERENCE, TEST, Scenario, scenario
from bench.clients.sets import QualitySet
from winnow.config.defaults import DEFAULTS
from winnow.data import federate
from winnow.experiment.build_simulation import PreparedRun
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.comparison import with_algorithm
from winnow.experiment.run import run_experiment
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.profiled_layer import default_layer

ROUNDS, ASSESSMENTS, HIDDEN = 20, 3, 64
LOCAL = {"name": "sgd", "learning_rate": 0.02, "batch_size": 32, "epochs": 2}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of one run; lists are by client."""

    data: str
    alpha: float
    way: str
    seed: int
    bad: list[bool]
    scores: list[float | None]
    verdicts: list[str]
    evidence: list[str]
    rivals: dict[str, list[float]]

    @property
    def key(self) -> tuple[str, float, str, int]:
        return self.data, self.alpha, self.way, self.seed

    def record(self) -> dict[str, Any]:
        """With six digits of each number: more would only make the file longer."""
        rivals = {name: [_short(each) for each in values] for name, values in self.rivals.items()}
        scores = [None if score is None else _short(score) for score in self.scores]
        return asdict(replace(self, scores=scores, rivals=rivals))


def try_clients(quality_set: QualitySet, alpha: float, way: str, seed: int, *, rivals: bool) -> Trial:
    """Train, and ask Winnow (and, with `rivals`, the rules it is compared with) who has bad data."""
    built = scenario(quality_set, alpha, way, seed)
    experiment = with_algorithm(
        DEFAULTS,
        "fedavg",
        data={
            "name": quality_set.name,
            "partition": {"name": "natural"},
            "clients": 0,
            "reference": REFERENCE,
            "test": TEST,
        },
        model={"name": "mlp", "hidden": [HIDDEN]},
        select={"fraction": 1.0},
        local=LOCAL,
        quality={"assessments": ASSESSMENTS},
        engine={"threads": 1},
        rounds=ROUNDS,
        seed=seed,
        has_owners=True,
    )
    with ExitStack() as closing:
        watched: list[tuple[PreparedRun, list[Any]]] = []

        def watch(prepared: PreparedRun) -> None:
            watched.append((prepared, closing.enter_context(recorded_rounds(prepared.training))))

        result = run_experiment(experiment, inputs=RunInputs(dataset=built.dataset), on_start=watch)
        numbers: dict[str, list[float]] = {}
        if rivals:
            seen = _observations(*watched[0], built, experiment.data, seed)
            numbers = {name: [float(each) for each in rule(seen)] for name, rule in RIVALS.items()}
    rows = {row["name"]: row for row in result.clients}
    own = [rows[name] for name in result.client_names]
    return Trial(
        data=quality_set.name,
        alpha=alpha,
        way=way,
        seed=seed,
        bad=built.bad.tolist(),
        scores=[None if row["score"] is None or np.isnan(row["score"]) else float(row["score"]) for row in own],
        verdicts=[row["verdict"] for row in own],
        evidence=[row["evidence"] for row in own],
        rivals=numbers,
    )


def _observations(
    prepared: PreparedRun, rounds: list[Any], built: Scenario, settings: Any, seed: int
) -> RunObservations:
    site, reference = prepared.simulation.site, federate(built.dataset, settings, seed).reference
    layer = default_layer(prepared.module, torch.from_numpy(reference.x[:1]))
    data = site.data.cohort(np.arange(len(built.bad)))
    rows = [data.rows_of(client) for client in range(len(built.bad))]
    return RunObservations(
        rounds=rounds,
        final=prepared.training.model,
        clients=[(data.x[own], data.y[own]) for own in rows],
        reference=(torch.from_numpy(reference.x), torch.from_numpy(reference.y)),
        execution=site.execution,
        evaluator=ModelEvaluator(prepared.module, partial(cross_entropy, reduction="none"), layer),
        trained=prepared.plan.layout.trained,
        seed=seed,
    )


def _short(number: float) -> float:
    return float(f"{number:.6g}")
