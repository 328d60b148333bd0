"""The job that is timed: arrays go to all clients, which add something to each; the mean goes out next. No torch."""

from pathlib import Path

PROGRAM = '''
from collections.abc import Mapping

import numpy as np

import winnow
from winnow.core import Reply
from winnow.core.scatter_gather import ScatterAndGather

ARRAYS, LENGTH, ROUNDS = {arrays}, {length}, {rounds}


class Made(Mapping):
    """Arrays that are made when they are asked for."""

    def __init__(self, names, make):
        self.names, self.make = list(names), make

    def __iter__(self):
        return iter(self.names)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, name):
        return self.make(name)


def add(tasks, holdings):
    """Every client adds its number."""
    return [Reply(task=task, payload={{"model": added(task.payload["model"], task.client)}}) for task in tasks]


def added(model, number):
    return Made(model, lambda name: model[name] + np.float32(number))


start = Made([f"layer-{{i:03}}" for i in range(ARRAYS)], lambda name: np.zeros(LENGTH, np.float32))
winnow.run_workflow(ScatterAndGather("add", start, ROUNDS), {{"add": add}}, data="numbers")
'''


def write_program(folder: Path, *, arrays: int, length: int, rounds: int) -> Path:
    """A program for `winnow submit`, with so many arrays of so many floats."""
    path = folder / "exchange.py"
    path.write_text(PROGRAM.format(arrays=arrays, length=length, rounds=rounds))
    return path


def mean_after(clients: int, rounds: int) -> float:
    """What every number must be in the end: each round adds the mean of the clients' numbers."""
    return rounds * (clients - 1) / 2
