"""Who says whose data are bad, in a run: which evidence it can have, and where that comes from."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.config.compatibility_checks import check_profile_layer
from winnow.config.schema import Experiment
from winnow.core import ConfigError, ModelError, Population, Work, stream
from winnow.data import Preprocessing
from winnow.experiment.build_learning_site import ModelSetup
from winnow.learn.aggregation import LinearFold
from winnow.learn.algorithm import Algorithm
from winnow.learn.algorithm_part import CONTRIBUTION, TOLD_BY_CLIENTS, UPDATES, EvidenceKind
from winnow.learn.client_quality.assess_handler import AssessmentSettings
from winnow.learn.client_quality.assessor import (
    MAX_ASSESSED_CLIENTS,
    ClientAssessor,
    ContributionSearch,
    Questions,
)
from winnow.learn.client_quality.client_findings import DataNames
from winnow.learn.client_quality.contribution import ContributionEstimator, evaluations_per_round
from winnow.learn.client_quality.evidence import BLOCK_OF, COLUMNS
from winnow.learn.client_quality.evidence_checks import EvidenceCheck
from winnow.learn.client_quality.evidence_pass import SampleClasses
from winnow.learn.client_quality.policy import QualityPolicy, clients_named
from winnow.learn.client_quality.reference_source import (
    NORMAL_QUINTILES,
    HeldReference,
    ReferenceSource,
    ServerReference,
    SummarySettings,
)
from winnow.learn.client_quality.reference_utility import ReferenceUtility
from winnow.learn.client_quality.update_evidence import UpdateEvidence
from winnow.learn.profile_by_class import COUNT_BYTES, target_edges
from winnow.learn.profiled_layer import default_layer
from winnow.learn.representation_profile import ELEMENT_BYTES
from winnow.learn.run_plan import TrainingPlan


def evidence_layer(experiment: Experiment, module: nn.Module, x: Tensor, private: frozenset[str]) -> str | None:
    """The layer whose outputs clients tell of; None where nothing is asked, or no layer is the same for all."""
    kinds = experiment.quality.kinds(experiment.composed(), experiment.filters)
    if "inputs" not in kinds:
        return None
    try:
        layer = default_layer(module, x)
        check_profile_layer(module, layer, private)
    except (ModelError, ConfigError):
        return None
    return layer


def gathered_evidence(
    experiment: Experiment, *, private: frozenset[str], layer: str | None, columns: bool, reference: int
) -> tuple[EvidenceKind, ...]:
    """The evidence that a run gathers: what it may, as far as there is any. What was asked for by name and cannot be
    had is refused; `reference` is how many samples the server has.
    """
    at_clients = bool(experiment.reference_clients)
    comparable = at_clients or reference > 0
    missing: dict[EvidenceKind, str] = {
        "inputs": "" if layer is not None else "the model has no layer that all clients share and that can be profiled",
        "columns": "" if columns else "the data are neither a table nor images",
        "labels": "the model has parts that are private to each client" if private else "",
        CONTRIBUTION: "clients hold the reference set" if at_clients else "",
    }
    if private:
        missing[CONTRIBUTION] = missing["labels"]
    if not comparable:
        missing |= dict.fromkeys((*TOLD_BY_CLIENTS, CONTRIBUTION), "there is no reference set to compare with")
    kinds = experiment.quality.kinds(experiment.composed(), experiment.filters)
    for kind in experiment.quality.evidence or ():
        if reason := missing.get(kind):
            raise ConfigError(f"quality.evidence: {kind!r} cannot be had: {reason}; remove it")
    return tuple(kind for kind in kinds if not missing.get(kind))


def build_assessor(
    experiment: Experiment,
    plan: TrainingPlan,
    model: ModelSetup,
    preprocessing: Preprocessing,
    *,
    sizes: NDArray[np.int64],
    names: Sequence[str],
    reference: tuple[Tensor, Tensor],
) -> ClientAssessor | None:
    """The assessor of a run; None where no evidence is gathered. `reference` is the server's, `names` the clients'."""
    settings, algorithm = experiment.quality, plan.algorithm
    kept = clients_named(settings.keep, names)
    classes = _sample_classes(plan, model, reference[1])
    widths = model.evidence_pass.widths(model.initial, *model.probe, classes)
    kinds = gathered_evidence(
        experiment,
        private=plan.private,
        layer=model.evidence_layer,
        columns=COLUMNS in widths,
        reference=len(reference[0]),
    )
    if not kinds:
        return None
    asked = _questions(experiment, plan, model, preprocessing, kinds, classes, widths, sizes, reference)
    shared = [name for name in plan.layout.trained if name not in plan.private]
    needed = max(algorithm.aggregate.min_clients, algorithm.schedule.min_training_clients)
    return ClientAssessor(
        settings,
        rounds=plan.rounds,
        clients=_assessed_clients(plan.seed, len(sizes)),
        weights=_weights(plan.algorithm, sizes),
        questions=asked if asked.settings.blocks else None,
        updates=UpdateEvidence(shared) if UPDATES in kinds else None,
        contributions=_contributions(experiment, plan, model, sizes, reference) if CONTRIBUTION in kinds else None,
        policy=QualityPolicy(settings.policy, len(sizes), kept, min_clients=max(1, needed)),
    )


def _sample_classes(plan: TrainingPlan, model: ModelSetup, targets: Tensor) -> SampleClasses:
    """By label or, in a regression, by bins of the targets of the server's reference set, if it has one."""
    if plan.classes is not None:
        return SampleClasses.of(plan.classes, sequences=model.probe[1].dim() > 1)
    edges = target_edges(targets.cpu().numpy()) if len(targets) else NORMAL_QUINTILES
    return SampleClasses.of(None, sequences=False, edges=edges)


def _questions(
    experiment: Experiment,
    plan: TrainingPlan,
    model: ModelSetup,
    preprocessing: Preprocessing,
    kinds: Sequence[EvidenceKind],
    classes: SampleClasses,
    widths: Mapping[str, int],
    sizes: NDArray[np.int64],
    reference: tuple[Tensor, Tensor],
) -> Questions:
    """What clients are asked; `widths` are the features of each block."""
    blocks = tuple(BLOCK_OF[kind] for kind in kinds if kind in TOLD_BY_CLIENTS)
    summary = SummarySettings(
        blocks=blocks,
        classes=classes.count,
        edges=classes.edges,
        seed=plan.seed,
        min_rows=experiment.quality.min_rows,
    )
    source: ReferenceSource = ServerReference(model.evidence_pass, *reference, summary)
    if holders := experiment.reference_clients:
        source = HeldReference(holders, summary, widths, private=plan.private, message_bytes=plan.message_bytes)
    asked = AssessmentSettings(
        blocks=blocks,
        classes=classes.count,
        edges=classes.edges,
        min_rows=experiment.quality.min_rows,
        count_step=experiment.quality.count_step,
        distinct_rows="inputs" in kinds,
    )
    told = sum(ELEMENT_BYTES * widths[block] + COUNT_BYTES for block in blocks) * classes.count
    return Questions(
        settings=asked,
        check=EvidenceCheck(asked, widths, sizes, one_hot=plan.classes is not None),
        reference=source,
        work=Work(profiling_passes=1, download_bytes=plan.message_bytes, profile_bytes=told),
        names=DataNames.of(preprocessing, plan.sample_shape, plan.classes),
    )


def _assessed_clients(seed: int, clients: int) -> NDArray[np.int64]:
    if clients <= MAX_ASSESSED_CLIENTS:
        return np.arange(clients)
    return np.sort(stream(seed, "assessed-clients").choice(clients, MAX_ASSESSED_CLIENTS, replace=False))


def _weights(algorithm: Algorithm, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """What clients count in the aggregation, where that is a weighted mean."""
    cohort = algorithm.select.cohort_size(len(sizes))
    rule = algorithm.aggregate
    rng = np.random.default_rng()  # what a client counts is not drawn
    fold = rule.start({}, Population(sizes=sizes), cohort, rng) if rule.needs_only_sums else None
    if not isinstance(fold, LinearFold):
        return np.ones(len(sizes))
    return np.array([fold.weight_of(client, 1) for client in range(len(sizes))])


def _contributions(
    experiment: Experiment,
    plan: TrainingPlan,
    model: ModelSetup,
    sizes: NDArray[np.int64],
    reference: tuple[Tensor, Tensor],
) -> ContributionSearch:
    utility = ReferenceUtility(model.execution, *reference, stream(plan.seed, "contribution-rows"))
    algorithm, mean_size = plan.algorithm, sizes.mean()
    passes = algorithm.client.passes(algorithm.local, round(mean_size))
    trained = int(algorithm.select.cohort_size(len(sizes)) * mean_size * passes)
    return ContributionSearch(
        estimator=ContributionEstimator(),
        utility=utility,
        evaluations=evaluations_per_round(trained_rows=trained, reference_rows=utility.rows, rounds=plan.rounds),
        seed=plan.seed,
    )
