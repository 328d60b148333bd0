"""How much noise leaves wrong labels visible in profiles by class.

    python -m bench.noisy_class_profiles

The clients of `bench.spoiled_clients`, and the initial model. Two fifths of them have their labels shuffled among their
own samples, so that their mix of classes stays as it was: what is told apart is labels, and nothing else.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import mannwhitneyu

from bench.spoiled_clients import BASE, images
from winnow.config.resolve import resolve
from winnow.core import Task
from winnow.data import DataSet
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.handlers import ProfileSettings, profile_clients
from winnow.learn.profile_by_class import ClassProfile, class_divergence
from winnow.learn.stack import TensorData
from winnow.privacy.dp.noisy_class_profiles import noisy_class_profile
from winnow.privacy.dp.noisy_profiles import SENSITIVITY
from winnow.privacy.dp.privacy_loss import GaussianRelease, epsilon

CLIP, DELTA = 5.0, 1e-5
MULTIPLIERS = (0.0003, 0.001, 0.003, 0.01)
SEEDS, DRAWS = 3, 5
SHUFFLED = 0.4


@dataclass(frozen=True, kw_only=True)
class World:
    """All clients' profiles without noise, of how many samples, whose labels are shuffled; the reference's profile."""

    profiles: list[ClassProfile]
    sizes: list[int]
    shuffled: NDArray[np.bool_]
    reference: ClassProfile

    def noisy(self, multiplier: float, rng: np.random.Generator) -> list[ClassProfile]:
        deviation, clients = SENSITIVITY * multiplier, zip(self.profiles, self.sizes, strict=True)
        return [noisy_class_profile(profile, size, CLIP, deviation, rng) for profile, size in clients]

    def told_apart(self, profiles: list[ClassProfile]) -> float:
        """The chance that a client with shuffled labels looks worse than another; NaN is worst, as in the selection."""
        found = class_divergence(profiles, self.reference)
        found = np.nan_to_num(found, nan=np.nanmax(found, initial=0.0))
        bad, good = found[self.shuffled], found[~self.shuffled]
        return float(mannwhitneyu(bad, good).statistic / (len(bad) * len(good)))


def world(dirichlet: float, seed: int, dataset: DataSet) -> World:
    data = {**BASE["data"], "partition": {"name": "dirichlet", "alpha": dirichlet}}
    ready = prepare_run(
        resolve({**BASE, "data": data}, algorithm="fedprof-by-class", seed=seed), RunInputs(dataset=dataset)
    )
    clients, site = len(ready.federation.population), ready.simulation.site
    assert isinstance(site.data, TensorData)
    shuffled = np.zeros(clients, bool)
    shuffled[np.random.default_rng(seed).permutation(clients)[: int(SHUFFLED * clients)]] = True
    for k in np.flatnonzero(shuffled).tolist():
        rows = torch.as_tensor(site.data.rows_of(k))
        site.data.y[rows] = site.data.y[rows][torch.as_tensor(np.random.default_rng(k).permutation(len(rows)))]
    settings = ProfileSettings(classes=ready.plan.profile_classes)
    tasks = [Task(name="profile", client=k, round=1, version=0, settings=settings) for k in range(clients)]
    found = [ClassProfile.of(reply.payload["profile"]) for reply in profile_clients(tasks, site)]
    reference = ready.training.evaluator.evaluate(ready.training.model, 0, 0, lambda tasks, check=None: []).profile
    assert isinstance(reference, ClassProfile)
    sizes = ready.federation.population.sizes.tolist()
    return World(profiles=found, sizes=sizes, shuffled=shuffled, reference=reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with MNIST")
    dataset = images(parser.parse_args().data)
    for dirichlet in (0.3, 1.0):
        worlds = [world(dirichlet, seed, dataset) for seed in range(SEEDS)]
        exact = [each.told_apart(each.profiles) for each in worlds]
        print(f"Dirichlet {dirichlet:g}, no noise: AUC {np.mean(exact):.2f}")
        for multiplier in MULTIPLIERS:
            seen = [
                each.told_apart(each.noisy(multiplier, np.random.default_rng((seed, draw))))
                for seed, each in enumerate(worlds)
                for draw in range(DRAWS)
            ]
            cost = epsilon([GaussianRelease(noise=multiplier)], DELTA)
            print(f"Dirichlet {dirichlet:g}, multiplier {multiplier:g}, ε {cost:.3g}: AUC {np.mean(seen):.2f}")


if __name__ == "__main__":
    main()
