"""What goes with every algorithm: FedProf's selection, by changing one setting, and batch normalisation."""

import pytest
import torch
from torch import nn

from winnow.core import RoundFinished
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.algorithm import Recipe
from winnow.learn.extended_model import state_without_heads
from world import blobs, experiment, prepared

WITH_PRIVATE_BODIES = {
    name for name, recipe in Recipe.known.items() if recipe.table().get("client", {}).get("private") == "body"
}
"""Their profiles could not be compared, which is said when a run is prepared."""


@pytest.mark.parametrize("algorithm", sorted(Recipe.known.keys() - WITH_PRIVATE_BODIES))
def test_selection_by_profile_goes_with_it(algorithm: str) -> None:
    ready = prepared("select.name=profile", "rounds=12", algorithm=algorithm)
    rounds = [event for event in ready.training.run(ready.federation) if isinstance(event, RoundFinished)]
    assert ready.experiment.select.name == "profile"
    assert max(event.metrics["test"]["accuracy"] for event in rounds) > 0.6


@pytest.mark.parametrize("algorithm", sorted(Recipe.known))
def test_batch_normalisation_goes_with_it(algorithm: str) -> None:
    """Statistics are averaged, never stepped along: a variance stays positive, a counter whole."""
    network = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    momentum = (
        () if "local" in Recipe.known[algorithm].table() else ("local.momentum=0.9",)
    )  # some bring their own optimiser
    small = experiment(*momentum, "data.partition={name='dirichlet', alpha=0.3}", algorithm=algorithm)
    ready = prepare_run(small, RunInputs(dataset=blobs(), module=network))
    for _ in ready.training.run(ready.federation):
        model = state_without_heads(ready.module, ready.training.model)
        assert all(torch.isfinite(tensor).all() for tensor in model.values())
        assert (model["1.running_var"] > 0).all()
        assert model["1.num_batches_tracked"].dtype == torch.int64
