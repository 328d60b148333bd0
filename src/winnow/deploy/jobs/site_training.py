"""Training in a job's process at a site: the handlers of a learning site, with this site's data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from msgspec.structs import replace as replace_struct
from torch import Tensor

from winnow.config.schema import Experiment
from winnow.core import Arrays, Failure, Filter, Handler, ModelError, Outcome, Task
from winnow.data import ClientData, ClientsOnDemand
from winnow.deploy.jobs.client_quality_sharing_limits import EvidenceLimits
from winnow.deploy.jobs.ensemble_terms import EnsembleTerms, total_rounds
from winnow.deploy.jobs.party_data import SiteData
from winnow.deploy.jobs.refuse_changed_questions import FirstQuestions
from winnow.deploy.jobs.task_executor import SiteHandlers
from winnow.experiment.build_training_workflow import (
    PROBE_SAMPLES,
    RunInputs,
    TrainingSetup,
    set_up_device,
    set_up_training,
)
from winnow.experiment.ensemble_setup import second_stage
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS
from winnow.learn.client_quality.assess_handler import ASSESS, AssessmentSettings
from winnow.learn.client_quality.reference_source import SUMMARISE_REFERENCE, SummarySettings
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.handlers import (
    HANDLERS,
    FineTuning,
    LossEvaluationSettings,
    PersonalEvaluationSettings,
    ProfileSettings,
    ReferenceEvaluationSettings,
)
from winnow.learn.learning_site import LearningSite
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.secure_randomness import secure_stream
from winnow.learn.stack import ClientSamples, LazyTensorData, TensorData, as_tensor
from winnow.learn.update_filters import site_filters
from winnow.privacy.dp.site_release_limits import SiteReleaseLimits

SETTINGS_TYPES: Mapping[str, type] = {
    "train": TrainSettings,
    "profile": ProfileSettings,
    "evaluate-loss": LossEvaluationSettings,
    "evaluate-reference": ReferenceEvaluationSettings,
    "evaluate-personal": PersonalEvaluationSettings,
    ASSESS: AssessmentSettings,
    SUMMARISE_REFERENCE: SummarySettings,
}


def training_handlers(
    experiment: Experiment,
    inputs: RunInputs,
    data: SiteData,
    first: int,
    identities: PartyIdentities,
    *,
    confusion_matrix: bool = False,
    share_evidence: Sequence[str] = TOLD_BY_CLIENTS,
) -> SiteHandlers:
    """What a site does in an experiment; `first` is the number of its first client, whose parties are `identities`.
    Confusion matrices leave only if the site's policy says so, and of evidence on the data what it shares.
    """
    device = set_up_device(experiment.engine)
    setup = set_up_training(
        experiment,
        inputs,
        _probe(data.clients, device),
        data.clients.classes,
        secure_stream,
        preprocessing=data.preprocessing,
        selection_is_public=True,
    )
    local_test = None if data.local_test is None else _in_memory(data.local_test, first, device)
    collecting = experiment.collect.site_extension(secure_stream, identities)
    besides = collecting.around(experiment.select.comparison.site_extension(secure_stream))
    limits = SiteReleaseLimits(
        whole=experiment.composed(),
        filters=experiment.filters,
        rounds=total_rounds(setup),
        size_of=lambda client: int(data.clients.sizes[client - first]),
        identities=identities,
        held=bool(collecting.handlers) and experiment.collect.sums_only,
    )
    questions = FirstQuestions(identities, first)
    second, needed = second_stage(setup, inputs), _needed(experiment, setup, local_test)
    return SiteHandlers(
        site=setup.model.site(
            _samples(data.clients, first, device),
            local_test,
            None if data.open is None else as_tensor(data.open, device),
        ),
        handlers={**(needed if second is None else second.handlers(needed, needed)), **besides.handlers},
        filters=(
            _as_signed(experiment, setup, EnsembleTerms(setup, second), questions, confusion_matrix=confusion_matrix),
            EvidenceLimits(experiment, setup.classes, questions, sequences=_sequences(data), shared=share_evidence),
            *limits.around(),
            *site_filters(experiment.filters, secure_stream),
        ),
        outer_filters=besides.filters,
        volatile=frozenset(besides.handlers) | _held_back(collecting),
        settings={**SETTINGS_TYPES, **besides.settings},
        in_memory=None,
    )


def _needed(
    experiment: Experiment, setup: TrainingSetup, local_test: TensorData | None
) -> Mapping[str, Handler[LearningSite]]:
    """What the job's configuration can ask for, and nothing else: a server is not to find other uses for the data."""
    kinds = experiment.quality.kinds(experiment.composed(), experiment.filters)
    asked = not set(TOLD_BY_CLIENTS).isdisjoint(kinds)
    unused = {
        "profile": setup.model.layer is None,
        "evaluate-loss": not experiment.select.requests_losses,
        "evaluate-reference": not experiment.reference_clients,
        "evaluate-personal": local_test is None,
        ASSESS: not asked,
        SUMMARISE_REFERENCE: not asked or not experiment.reference_clients,
    }
    return {name: handler for name, handler in HANDLERS.items() if not unused.get(name, False)}


def _as_signed(
    experiment: Experiment,
    setup: TrainingSetup,
    terms: EnsembleTerms,
    questions: FirstQuestions,
    *,
    confusion_matrix: bool,
) -> Filter[LearningSite]:
    """Training and evaluation are done as the job's author signed them, whatever the server asks for, and tell nothing
    else.
    """
    metrics = {metric.name for metric in setup.model.metrics}
    classes_as_signed = _classes_as_signed(experiment, setup, questions)

    def check(tasks: Sequence[Task], site: LearningSite, call_next: Handler[LearningSite]) -> Sequence[Outcome]:
        _check_model(tasks[0], terms.model_of(tasks[0]))
        terms.check_columns(tasks[0])
        asked = tasks[0].settings
        if isinstance(asked, TrainSettings):
            training = terms.training_of(tasks[0], asked)
            signed = replace(asked, profile_classes=None) == training and classes_as_signed(asked.profile_classes)
        elif isinstance(asked, PersonalEvaluationSettings):
            signed = asked.client == experiment.client and _tuned_as_signed(asked.tuning, experiment)
            signed = signed and metrics.issuperset(asked.metrics) and asked.confusion_classes in (0, setup.classes)
            if asked.confusion_classes and not confusion_matrix:
                tasks = [replace_struct(task, settings=replace(asked, confusion_classes=0)) for task in tasks]
        elif isinstance(asked, ReferenceEvaluationSettings):
            signed = metrics.issuperset(asked.metrics) and classes_as_signed(asked.profile_classes)
        elif isinstance(asked, ProfileSettings):
            signed = classes_as_signed(asked.classes)
        else:
            signed = True
        if not signed:
            reason = "the server's settings of the task differ from those the job's author signed"
            return [Failure(task=task, stage="admission", reason=reason) for task in tasks]
        return call_next(tasks, site)

    return check


def _classes_as_signed(
    experiment: Experiment, setup: TrainingSetup, questions: FirstQuestions
) -> Callable[[ProfileClasses | None], bool]:
    """Whether profiles may be made by these classes. The server knows the reference set, so it says which; but what may
    be told of them is signed, and they never change: a bin that moves from round to round would single out samples.
    """

    def check(asked: ProfileClasses | None) -> bool:
        signed = experiment.select.accepts_classes(asked, setup.classes)
        return signed and (asked is None or questions.stands("classes of profiles", repr(asked)))

    return check


def _check_model(task: Task, own: Arrays) -> None:
    """Refuse a model that is not the job's: whether it can be trained at all might depend on a sample."""
    if task.name == "train" and "model" not in task.payload:
        raise ModelError("the training task contains no model; this site needs one to compute the update")
    for name, tensor in task.payload.get("model", {}).items():
        like = own.get(name)
        if like is None or tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise ModelError(
                f"the task's model does not match the job's: {name} is unknown, or has a different shape or type"
            )


def _tuned_as_signed(asked: FineTuning | None, experiment: Experiment) -> bool:
    return asked is None or (asked.local, asked.epochs, asked.seed) == (
        experiment.local,
        experiment.evaluation.tune_epochs,
        experiment.seed,
    )


def _sequences(data: SiteData) -> bool:
    """Whether each sample has a class at every position."""
    some = data.clients.template if isinstance(data.clients, ClientsOnDemand) else data.clients
    return data.clients.classes is not None and some.y.ndim > 1


def _held_back(collecting: SiteExtension) -> frozenset[str]:
    """A collection in several steps leaves updates in the memory of this process until they are asked for."""
    return frozenset({"train"} if collecting.handlers else ())


def _probe(clients: ClientData | ClientsOnDemand, device: torch.device) -> tuple[Tensor, Tensor]:
    """Some samples to try the model on."""
    some = clients.load(0) if isinstance(clients, ClientsOnDemand) else clients
    return as_tensor(some.x[:PROBE_SAMPLES], device), as_tensor(some.y[:PROBE_SAMPLES], device)


def _samples(clients: ClientData | ClientsOnDemand, first: int, device: torch.device) -> ClientSamples:
    """The samples under the numbers that their clients have in the job."""
    if isinstance(clients, ClientsOnDemand):
        return LazyTensorData(loader=_Numbered(clients, first), device=device)
    return _in_memory(clients, first, device)


def _in_memory(clients: ClientData, first: int, device: torch.device) -> TensorData:
    numbers = np.arange(first, first + len(clients))
    return replace(TensorData.from_client_data(clients, device), loaded_clients=numbers)


class _Numbered:
    """A site's clients, asked for by their numbers in the job."""

    def __init__(self, clients: ClientsOnDemand, first: int) -> None:
        self._clients, self._first = clients, first
        self.sizes = np.concatenate([np.zeros(first, np.int64), clients.sizes])
        self.sample_bytes = clients.sample_bytes

    def gather(self, clients: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> ClientData:
        return self._clients.gather(clients - self._first)
