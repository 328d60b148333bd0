"""Who trains which leaf and who opted in, and what an ensemble is refused for."""

import numpy as np

from winnow.config.label_checks import method_name
from winnow.config.schema import Experiment
from winnow.core import ConfigError, stream
from winnow.experiment.build_training_workflow import RunInputs, TrainingSetup
from winnow.learn.ensemble.cluster_rules import Members, PublicAttributes
from winnow.learn.ensemble.ensemble_settings import OverArch
from winnow.learn.extended_model import ExtendedModel
from winnow.privacy.dp.client_book import refuse_label_clusters
from winnow.privacy.dp.run_accounting import promises_privacy

PRIVATE_LEAF = "private columns"


def check_ensemble(experiment: Experiment, setup: TrainingSetup, inputs: RunInputs, *, deployed: bool) -> None:
    """Refuse what an ensemble cannot do with this model, or here."""
    whole, settings = experiment, experiment.ensemble
    assert settings is not None
    if inputs.estimator is not None or setup.preprocessing.inputs or isinstance(setup.model.module, ExtendedModel):
        raise ConfigError(
            "an ensemble's leaves are modules with one input and without further heads: no scikit-learn estimators, "
            f"no data with several inputs, and not {method_name(whole.client)} with heads of its own"
        )
    if settings.clusters.from_labels:
        refuse_label_clusters(whole.composed(), whole.filters, getattr(settings.clusters, "name", ""))
    if deployed and settings.clusters.from_labels:
        raise ConfigError("ensemble.clusters by loss tell labels, and are for simulations; cluster by sites")
    if (
        deployed
        and not (settings.clusters.disjoint and not settings.private)
        and promises_privacy(whole.composed(), whole.filters)
    ):
        raise ConfigError(
            "a deployed site lets one noisy update of a client out in a round, and here clients train several leaves; "
            "choose disjoint clusters without private columns"
        )
    if deployed and settings.clusters.by_attributes:
        raise ConfigError(
            f"ensemble.clusters: sites tell nothing of their clients' {settings.clusters.text}; cluster by "
            '{ name = "sites", groups = … }, "hash" or "random"'
        )


def cluster_clients(experiment: Experiment, attributes: PublicAttributes) -> tuple[dict[str, Members], Members]:
    """Each leaf's clients, and those who train no leaf because the over-arch is theirs."""
    settings = experiment.ensemble
    assert settings is not None
    everybody, others = np.arange(len(attributes)), np.zeros(0, np.int64)
    over = settings.combine
    found = settings.clusters.clusters(attributes, experiment.seed)
    if isinstance(over, OverArch) and over.at == "clients" and over.users == "others":
        order = stream(experiment.seed, "ensemble", "over-arch users").permutation(everybody)
        others = np.sort(order[: max(1, round(over.others * len(everybody)))])
        found = {name: np.setdiff1d(members, others) for name, members in found.items()}
        if empty := [name for name, members in found.items() if not len(members)]:
            raise ConfigError(f"ensemble: all clients of leaf {empty[0]!r} train the over-arch; lower combine.others")
    if settings.private:
        found = {**found, PRIVATE_LEAF: np.setdiff1d(everybody, others)}
    return found, others


def opt_in_clients(over: OverArch, clients: int, seed: int) -> Members:
    """Whose samples the server may have."""
    order = stream(seed, "ensemble", "opt-in").permutation(clients)
    return np.sort(order[: max(1, round(over.opt_in * clients))])
