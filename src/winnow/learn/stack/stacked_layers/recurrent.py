"""Stacked LSTM, GRU and Elman layers: the input products of all time steps at once, then one step after another."""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from winnow.learn.stack.stacked_layers.base import FoldedShape, StackedLayer, UnstackableError
from winnow.learn.stack.stacked_layers.dense_and_embedding import batched_linear
from winnow.learn.stack.trainable_state import split_clients

State = tuple[Tensor, ...]
Hidden = Tensor | State


class StackedRecurrent(StackedLayer):
    """A recurrent layer of any depth and direction; the gates follow the conventions of `torch.nn`."""

    states = 1

    def __init__(self, plain: nn.RNNBase, fold: FoldedShape) -> None:
        self.tensors = tuple(name for name, _ in plain.named_parameters())  # type: ignore[misc]
        super().__init__(plain, fold)
        if plain.proj_size:
            raise UnstackableError("there is no stacked version of a recurrent layer with projections")
        self.hidden_size = plain.hidden_size
        self.depth = plain.num_layers
        self.bidirectional = plain.bidirectional
        self.batch_first = plain.batch_first
        self.dropout = plain.dropout

    @abstractmethod
    def cell(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        """The next state from the input's and the last hidden state's products [K, B, gates·H]."""

    def forward(self, x: Tensor, hidden: Hidden | None = None) -> tuple[Tensor, Hidden]:
        if x.dim() != 3:
            raise UnstackableError("a stacked recurrent layer needs a batch of sequences as input")
        series = x.transpose(0, 1) if self.batch_first else x
        series = series.reshape(len(series), self.fold.clients, -1, x.shape[2])  # [T, K, B, F]
        starts = self._starts(series, hidden)
        ends: list[State] = []
        for level in range(self.depth):
            passes = [self._pass(series, level, reverse, starts[len(ends) + reverse]) for reverse in self._directions]
            series = torch.cat([outputs for outputs, _ in passes], -1)
            ends += [end for _, end in passes]
            if self.dropout and level < self.depth - 1:
                series = functional.dropout(series, self.dropout, self.training)
        outputs = series.flatten(1, 2)
        last = tuple(torch.stack(parts).flatten(1, 2) for parts in zip(*ends, strict=True))
        return outputs.transpose(0, 1) if self.batch_first else outputs, last if len(last) > 1 else last[0]

    @property
    def _directions(self) -> range:
        return range(2 if self.bidirectional else 1)

    def _starts(self, series: Tensor, hidden: Hidden | None) -> list[State]:
        """One start state [K, B, H] for each level and direction."""
        rows = self.depth * len(self._directions)
        if hidden is None:
            zeros = series.new_zeros(*series.shape[1:3], self.hidden_size)
            return [(zeros,) * self.states] * rows
        parts = hidden if isinstance(hidden, tuple) else (hidden,)
        return [tuple(split_clients(part[row], self.fold.clients) for part in parts) for row in range(rows)]

    def _pass(self, series: Tensor, level: int, reverse: int, state: State) -> tuple[Tensor, State]:
        suffix = f"l{level}{'_reverse' if reverse else ''}"
        weight, bias = getattr(self, f"weight_hh_{suffix}"), getattr(self, f"bias_hh_{suffix}", None)
        steps = self._input_products(series, suffix).unbind()
        outputs = []
        for inputs in reversed(steps) if reverse else steps:
            state = self.cell(inputs, batched_linear(state[0], weight, bias), state)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if reverse else outputs), state

    def _input_products(self, series: Tensor, suffix: str) -> Tensor:
        """[T, K, B, F] -> [T, K, B, gates·H], all time steps in one product a client."""
        time, clients, batch, features = series.shape
        rows = series.transpose(0, 1).reshape(clients, time * batch, features)
        weight, bias = getattr(self, f"weight_ih_{suffix}"), getattr(self, f"bias_ih_{suffix}", None)
        return batched_linear(rows, weight, bias).view(clients, time, batch, -1).transpose(0, 1)


class StackedLstm(StackedRecurrent):
    states = 2

    def cell(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        enter, forget, new, leave = (inputs + recurrent).chunk(4, -1)
        memory = torch.addcmul(torch.sigmoid(forget) * state[1], torch.sigmoid(enter), torch.tanh(new))
        return torch.sigmoid(leave) * torch.tanh(memory), memory


class StackedGru(StackedRecurrent):
    def cell(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        reset_in, update_in, new_in = inputs.chunk(3, -1)
        reset_back, update_back, new_back = recurrent.chunk(3, -1)
        new = torch.tanh(torch.addcmul(new_in, torch.sigmoid(reset_in + reset_back), new_back))
        return (torch.lerp(new, state[0], torch.sigmoid(update_in + update_back)),)


class StackedRnn(StackedRecurrent):
    def __init__(self, plain: nn.RNN, fold: FoldedShape) -> None:
        super().__init__(plain, fold)
        self.activation = torch.tanh if plain.nonlinearity == "tanh" else torch.relu

    def cell(self, inputs: Tensor, recurrent: Tensor, state: State) -> State:
        return (self.activation(inputs + recurrent),)
