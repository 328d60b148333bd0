"""Accuracy against ε, for FedAvg and FedProf, and how well selection by profile survives noise.

python -m bench.privacy digits        minutes on two cores
python -m bench.privacy mnist         539 writers as clients; a quarter of an hour
python -m bench.privacy mnist small   the same with one seed and two budgets

A client's whole data are protected (central differential privacy). All runs of a row have the same budget; noise is
chosen for it. FedProf's profiles are part of the budget. Accuracy is the last model's on the test set: mean and
standard deviation over seeds.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import winnow
from winnow.core import AnyEvent, Selected
from winnow.privacy.dp.privacy_loss import GaussianRelease, epsilon, least_noise

PROFILE_SHARE = 3.0
"""A profile has so many times the noise multiplier of a sum: a tenth of the budget goes to profiles."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """A task, its cohort, and the budgets to compare."""

    options: dict[str, Any]
    clients: int
    invited: int
    rounds: int
    delta: float
    clip: float
    profile_clip: float
    budgets: tuple[float, ...] = (16.0, 8.0, 4.0, 2.0)
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def sampling_probability(self) -> float:
        return self.invited / self.clients

    @property
    def most_often(self) -> int:
        """In how many rounds the client takes part, roughly, that takes part most often."""
        mean = self.rounds * self.sampling_probability
        return round(mean + np.sqrt(2 * np.log(self.clients) * mean * (1 - self.sampling_probability)))


DIGITS = Study(
    options={
        "data": "digits",
        "clients": 150,
        "corruptions": [{"name": "noise", "fraction": 0.4, "sd": 3.0}],
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"name": "sgd", "learning_rate": 0.1, "batch_size": 8, "epochs": 3, "momentum": 0.0},
    },
    clients=150,
    invited=40,
    rounds=30,
    delta=1e-3,
    clip=0.5,
    profile_clip=3.0,
)

MNIST = Study(
    options={
        "data": "mnist",
        "clients": 0,
        "partition": {"name": "natural"},
        "corruptions": [{"name": "noise", "fraction": 0.4, "sd": 3.0}],
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"name": "sgd", "learning_rate": 0.05, "batch_size": 32, "epochs": 1, "momentum": 0.0},
    },
    clients=539,
    invited=100,
    rounds=40,
    delta=1e-3,
    clip=0.5,
    profile_clip=15.0,
    budgets=(8.0, 4.0, 2.0),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    accuracy: float
    rounds: int
    spent: float
    corrupted: float
    """Of all invitations, the share of clients whose data are corrupted."""


def _noise_for_budget(budget: float, delta: float, times: int, chance: float) -> float:
    """The least noise multiplier with which so many releases stay within the budget."""
    found = least_noise(
        lambda noise: epsilon([GaussianRelease(noise=noise, times=times, sampling_probability=chance)], delta) <= budget
    )
    assert found is not None
    return found


def ways(study: Study, budget: float | None) -> dict[str, dict[str, Any]]:
    """FedAvg with and without amplification, and FedProf."""
    if budget is None:
        plain = {"select": {"count": study.invited}}
        return {"FedAvg": plain, "FedProf": plain}
    often = study.most_often
    sampled = _noise_for_budget(budget, study.delta, study.rounds, study.sampling_probability)
    fixed = _noise_for_budget(budget, study.delta, often, 1.0)
    noisy = {"name": "noisy", "clip": study.profile_clip, "noise_multiplier": PROFILE_SHARE * fixed}
    return {
        "FedAvg, Poisson": {
            "select": {"name": "poisson", "count": study.invited},
            "collect": _central(study, budget, sampled),
        },
        "FedAvg, fixed size": {"select": {"count": study.invited}, "collect": _central(study, budget, fixed)},
        "FedProf": {
            "select": {"count": study.invited, "profile_comparison": noisy, "divergence": "normalised", "alpha": 1.0},
            "collect": _central(study, budget, fixed * np.sqrt(1 + PROFILE_SHARE**-2)),
        },
    }


def _central(study: Study, budget: float, noise: float) -> dict[str, Any]:
    return {
        "name": "central-dp",
        "noise_multiplier": float(noise),
        "clip": study.clip,
        "adaptive_clip": True,
        "delta": study.delta,
        "epsilon": budget,
    }


def run(study: Study, way: str, settings: dict[str, Any], seed: int) -> Outcome:
    algorithm = "fedprof" if way.startswith("FedProf") else "fedavg"
    settings = {"aggregate": {"name": "partial"}, **settings}
    result = winnow.run(
        algorithm=algorithm, seed=seed, rounds=study.rounds, progress=False, **study.options, **settings
    )
    last = result.summary.test_last
    assert last is not None
    return Outcome(
        accuracy=last.value,
        rounds=result.summary.rounds,
        spent=result.summary.privacy_spent.get("epsilon", float("nan")),
        corrupted=_corrupted(result.view.events(), result.view.conditions["of_client"]),
    )


def _corrupted(events: Any, of_client: list[int]) -> float:
    invited = [event.clients for event in _invitations(events)]
    conditions = np.asarray(of_client)
    return float(np.mean(conditions[np.concatenate(invited)] > 0))


def _invitations(events: Iterator[AnyEvent]) -> Iterator[Selected]:
    return (event for event in events if isinstance(event, Selected))


def show(study: Study) -> None:
    print("| ε | way | accuracy | rounds held | ε spent | corrupted among the invited |\n|---|---|---|---|---|---|")
    for budget in (None, *study.budgets):
        for way, settings in ways(study, budget).items():
            found = [run(study, way, settings, seed) for seed in study.seeds]
            mean = {name: np.mean([getattr(each, name) for each in found]) for name in Outcome.__annotations__}
            spread = np.std([each.accuracy for each in found])
            limit, spent = ("∞", "–") if budget is None else (f"{budget:g}", f"{mean['spent']:.2f}")
            accuracy = f"{mean['accuracy']:.3f} ± {spread:.3f}"
            cells = limit, way, accuracy, f"{mean['rounds']:.0f}", spent, f"{100 * mean['corrupted']:.0f} %"
            print(f"| {' | '.join(cells)} |", flush=True)


def survival(study: Study) -> None:
    """Profiles alone with noise, updates in the clear: how much the selection still sees."""
    print("\n| noise multiplier | ε of one profile | corrupted among the invited | accuracy |\n|---|---|---|---|")
    for noise in (None, 0.01, 0.03, 0.1, 0.3, 1.0):
        select: dict[str, Any] = {"count": study.invited}
        if noise is not None:
            select["profile_comparison"] = {"name": "noisy", "clip": study.profile_clip, "noise_multiplier": noise}
        found = [run(study, "FedProf", {"select": select}, seed) for seed in study.seeds]
        one = "∞" if noise is None else f"{epsilon([GaussianRelease(noise=noise)], study.delta):.3g}"
        shares, accuracies = (np.mean([getattr(each, name) for each in found]) for name in ("corrupted", "accuracy"))
        print(f"| {'none' if noise is None else noise} | {one} | {100 * shares:.0f} % | {accuracies:.3f} |", flush=True)


def main() -> None:
    study = {"digits": DIGITS, "mnist": MNIST}[sys.argv[1]]
    if "small" in sys.argv[2:]:
        study = Study(**{**vars(study), "seeds": (0,), "budgets": (8.0,), "rounds": 20})
    show(study)
    survival(study)


if __name__ == "__main__":
    main()
