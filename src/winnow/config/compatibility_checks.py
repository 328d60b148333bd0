"""What is wrong with a combination of data, model and settings, said before a run begins and leaves anything behind."""

import hashlib
from collections.abc import Sequence
from copy import deepcopy
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor, nn

from winnow.core import ConfigError, ModelError
from winnow.core.join_names import counted
from winnow.data import Examples, FederatedData
from winnow.learn.algorithm import Algorithm
from winnow.learn.client_round_method import ClientUpdate, PlainUpdate
from winnow.learn.collect import Collect
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.metrics import Metric
from winnow.learn.stack import Loss, ModelState, OwnLoop, OwnStep, OwnTraining
from winnow.learn.stack.execution_interface import min_batch_size
from winnow.learn.stack.user_training_functions import source_of


@torch.no_grad()
def output_width(module: nn.Module, x: Tensor) -> int | None:
    """The number of a model's outputs; None if it does not take the samples, which is explained where it is tried."""
    try:
        outputs = deepcopy(module).eval()(x)
        return outputs.shape[-1] if outputs.dim() > 1 else 1
    except Exception:  # a user's model may fail in any way
        return None


def check_outputs(module: nn.Module, x: Tensor, classes: int | None, loss: Loss, *, may_have_more: bool) -> None:
    """One output a class: a label beyond the last output would only be met in the middle of a run, and an output
    beyond the last class when it is predicted. In sequences, classes are those of the samples at hand.
    """
    if not classes or loss.name not in {"cross-entropy", "nll"}:
        return
    width = output_width(module, x)
    if width is not None and (width < classes or (width > classes and not may_have_more)):
        raise ModelError(
            f"the model has {counted(width, 'output')}, but the data has {classes} classes; "
            f"give the model {counted(classes, 'output')}"
        )


def check_own_training(own: OwnTraining, client: ClientUpdate) -> None:
    """A step has no place where each sample's gradient is bounded, a whole loop none where methods come in."""
    name = getattr(client, "name", "")
    if isinstance(own, OwnLoop) and type(client) is not PlainUpdate:
        raise ConfigError(
            f"client.name = {name!r} cannot be used with a whole training loop, which replaces it; choose an algorithm "
            "with client.name = 'plain' (fedavg, fedprof), or write a step: winnow.run(step=…)"
        )
    if isinstance(own, OwnStep) and client.own_steps:
        raise ConfigError(
            f"client.name = {name!r} takes steps of its own, with losses of its own, which step= cannot give; "
            "leave step= out or choose another algorithm"
        )
    if isinstance(own, OwnStep) and client.bounds_samples:
        raise ConfigError(
            f"client.name = {name!r} bounds the gradient of every sample, which step= does not give; "
            "pass loss=, a function with one loss per sample, instead"
        )


def check_profile_layer(module: nn.Module, layer: str | None, private: frozenset[str]) -> None:
    """A profile is only comparable if every client computes it with the same parameters."""
    if layer is None or not private:
        return
    instead = "choose a layer before the private part, or another select.name"
    if any(name.startswith(f"{layer}.") for name in private):
        raise ConfigError(f"select.layer: layer {layer!r} belongs to the private part of the model; {instead}")
    before = takewhile(lambda path: path != layer, (path for path, _ in module.named_modules()))
    owners = {*before} - {""}
    for name in module.state_dict():
        if name in private and name.rpartition(".")[0] in owners:
            raise ConfigError(
                f"select.layer: layer {layer!r} comes after {name!r}, which is private to each client, so profiles "
                f"cannot be compared; {instead}"
            )


def check_batch_norm(
    module: nn.Module, local: LocalOptimiser, sizes: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> str:
    """Batch normalisation learns nothing from a single sample: refuse it for all clients, and say so for some."""
    if min_batch_size(module) == 1:
        return ""
    if local.batch_size == 1:
        raise ConfigError("local.batch_size: batch normalisation cannot train on batches of 1; set it to 2 or more")
    single = int((sizes == 1).sum())
    if single == len(sizes):
        raise ConfigError(
            "every client has a single sample, on which batch normalisation cannot train; "
            "use a model without batch normalisation"
        )
    clients = "1 client" if single == 1 else f"{single} clients"
    return f"{clients} with a single sample cannot train: the model uses batch normalisation" if single else ""


def reference_evaluation_notice(evaluated_by: str, private: frozenset[str]) -> str:
    """The reference set cannot tell what models with private parts are worth; it is a notice, since they do train."""
    if not private or evaluated_by != "reference":
        return ""
    return (
        "the reference set evaluates the shared model, whose private part is never trained; "
        "set data.local_test and evaluation.by = 'clients' to evaluate each client's own model"
    )


def server_model_notice(collect: Collect, evaluated_by: str) -> str:
    """Where clients keep the model to themselves, they alone can say what it is worth."""
    if collect.server_has_model:
        return ""
    name = getattr(collect, "name", "")
    if evaluated_by == "reference":
        raise ConfigError(
            f"collect.name = {name!r} leaves the server without a trained model, and evaluation.by = 'reference' "
            "evaluates the server's; set data.local_test and evaluation.by = 'clients', or "
            "collect.average_to_server = true"
        )
    return (
        "the server has no trained model: its scores on the reference and test set, and the model of the run folder, "
        "are the initial model's"
    )


def probe_notice(*, probes: bool) -> str:
    """Whose scores those of features are."""
    if not probes:
        return ""
    return (
        "scores are of a linear probe: before each evaluation the server fits the model's last layer to labelled "
        "samples of its own, or else to the reference set"
    )


def one_class_notice(metric: Metric, reference: Examples) -> str:
    """Samples of one class leave some metrics undefined: no model would ever be best."""
    if not metric.needs_two_classes or len(np.unique(reference.y)) != 1:
        return ""
    return f"{metric.name} is undefined on the reference set, which has one class only; no model will count as best"


def check_cohort(algorithm: Algorithm, clients: int) -> None:
    """Robust aggregation needs enough updates, and a schedule that waits for some has them training."""
    select, rule, at_work = algorithm.select, algorithm.aggregate, algorithm.schedule.min_training_clients
    summed, together = (
        algorithm.collect.min_cohort_size,
        min(select.cohort_size(clients), select.initial_replies(clients)),
    )
    if together < summed:
        raise ConfigError(
            f"collect.min_clients = {summed}, but a round has {together} client{'s' * (together != 1)}; select more "
            "clients or lower collect.min_clients"
        )
    if select.cohort_size(clients) < at_work:
        cohort = select.cohort_size(clients)
        raise ConfigError(
            f"schedule.buffer_size = {at_work}, but only {cohort} clients train at a time; "
            "lower schedule.buffer_size or raise select.count"
        )
    needs = f"aggregate.name = {getattr(rule, 'name', '')!r} needs {rule.min_clients} updates a round"
    if select.cohort_size(clients) < rule.min_clients:
        cohort = select.cohort_size(clients)
        raise ConfigError(
            f"{needs}, but select chooses {cohort}; raise select.count or choose an aggregation that needs fewer"
        )
    if select.initial_replies(clients) < rule.min_clients:
        awaited = select.initial_replies(clients)
        raise ConfigError(
            f"{needs}, but the first rounds wait for {awaited} only; "
            "raise select.first_stage_clients or choose an aggregation that needs fewer"
        )


def fingerprint(
    spread: FederatedData,
    initial: ModelState,
    loss: Loss,
    own: OwnTraining | None = None,
    own_metrics: Sequence[Metric] = (),
) -> str:
    """Tells apart data, models, losses, training steps and own metrics that a configuration cannot: a run resumes as
    itself.
    """
    digest = hashlib.sha256()  # processors have instructions for it, which counts where data are large
    for array in (*spread.clients.fingerprint_arrays(), spread.reference.x, spread.test.x):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    layout = [(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in initial.items()]
    digest.update(f"{layout}{loss.name}".encode())
    if own is not None:
        digest.update(source_of(own.function))
    for metric in own_metrics:
        digest.update(f"{metric.name} {metric.lower_is_better} {metric.per_sample} {metric.power}".encode())
        digest.update(source_of(metric.function))
    return digest.hexdigest()
