"""Helpers of FedMatch: the models of other clients that are most like one's own."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from winnow.core import ModelError, stream
from winnow.learn.client_round_method import LocalTraining
from winnow.learn.stack import ModelState

HELPERS, CLIENT, KNOWN = "helpers", "client", "known"
"""The part of a task with the ψ of some clients, [bank, ...]; in it, who they are; how many helpers a client has."""


def chosen_helpers(training: LocalTraining, own: str, count: int) -> list[list[int]]:
    """For each client of the cohort the places in the bank of its helpers, the nearest first: by the distance between
    probabilities that its own last model and σ + ψ of another give one image of noise (section 3.2, inter-client
    consistency). A client that has no such model has none.
    """
    bank = _bank(training)
    if not bank or not count:
        return [[] for _ in training.clients]
    names, others = bank[CLIENT].tolist(), _with_sigma(training, bank)
    seen = _probabilities(training, others, len(names))
    chosen = []
    for client, kept in zip(training.clients.tolist(), training.stored, strict=True):
        if own not in kept:
            chosen.append(list[int]())
            continue
        mine = _probabilities(training, {name: tensor.unsqueeze(0) for name, tensor in kept[own].items()}, 1)
        order = (seen - mine).norm(dim=1).argsort(stable=True).tolist()
        chosen.append([place for place in order if names[place] != client][:count])
    return chosen


def helper_memory(
    training: LocalTraining, chosen: Sequence[Sequence[int]], psi: ModelState, count: int
) -> dict[str, Tensor]:
    """What a rule remembers of helpers: how many each client has, [K, 1], and models, [K, ...]; where it has fewer, the
    model as it came stands in their place.
    """
    known = torch.tensor([[float(len(places))] for places in chosen], device=training.data.device)
    memory = {KNOWN: known}
    bank = _bank(training)
    others = _with_sigma(training, bank) if bank else {}
    for number in range(count):
        for name, came in training.model.items():
            each = [
                others[name][places[number]] if name in others and number < len(places) else came[0]
                for places in chosen
            ]
            memory[f"{number}/{name}"] = torch.stack(each)
    return memory


def _bank(training: LocalTraining) -> ModelState:
    """What the server sent, which may be anything."""
    sent: ModelState = dict(training.sent.get(HELPERS, {}))
    if not sent:
        return {}
    names = sent.get(CLIENT)
    others = {name: tensor for name, tensor in sent.items() if name != CLIENT}
    if names is None or names.dim() != 1 or {tuple(t.shape[:1]) for t in others.values()} != {(len(names),)}:
        raise ModelError("the server's helpers are not parts of models like this one")
    _check_parts(training, others, 1, "the server's helpers are not parts of models")
    return sent


def received_psi(training: LocalTraining) -> ModelState:
    """ψ, [1, ...], if the server sent one."""
    _check_parts(training, training.sent.get("psi", {}), 0, "the server's ψ is not part of a model")
    return training.received_part("psi")


def _check_parts(training: LocalTraining, parts: Mapping[str, Tensor], leading: int, fault: str) -> None:
    """Each must be like the entry of the model that it is to be added to, after so many dimensions more."""
    model = training.sent["model"]
    expected = {name: (model[name].shape, model[name].dtype) for name in model if name in training.trained}
    if {name: (tensor.shape[leading:], tensor.dtype) for name, tensor in parts.items()} != expected:
        raise ModelError(f"{fault} like this one")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in parts.values()):
        raise ModelError(f"{fault}: values are not finite")


def _with_sigma(training: LocalTraining, bank: ModelState) -> ModelState:
    """σ + ψ of each, [bank, ...], and of entries that have no ψ the model's own."""
    model, psi, count = training.sent["model"], training.sent["psi"], len(bank[CLIENT])
    return {
        name: (tensor - psi[name]) + bank[name] if name in bank else tensor.expand(count, *tensor.shape)
        for name, tensor in model.items()
    }


def _probabilities(training: LocalTraining, states: ModelState, count: int) -> Tensor:
    """Of each of the models for the image of noise, [n, classes]."""
    x = training.data.x
    rng = stream(training.seed, "helpers", "noise")
    if x.is_floating_point():  # as the authors: normal around the middle of [0, 1], and cut off at the ends
        noise = torch.from_numpy(rng.normal(0.5, 0.5, tuple(x.shape[1:]))).clamp(0, 1).to(x)
    else:
        noise = torch.from_numpy(rng.integers(0, 2, tuple(x.shape[1:]))).to(x)
    return training.execution.outputs(states, noise.expand(count, 1, *noise.shape)).flatten(0, 1).softmax(1)
