"""A small world for tests: real parts, little data."""

from pathlib import Path
from typing import Any

import numpy as np

from winnow.config.resolve import resolve
from winnow.config.schema import Experiment
from winnow.core import UNTIL_ALL, Payload
from winnow.data import DataSet, from_arrays
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.collect import RoundContext
from winnow.learn.reply_checks import ExpectedReply

BASE: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "target": 0.6,
    "data": {
        "clients": 8,
        "reference": 60,
        "test": 40,
        "corruptions": [{"name": "noise", "fraction": 0.25, "sd": 2.0}],
    },
    "model": {"name": "mlp", "hidden": [12]},
    "select": {"count": 3},
    "local": {"name": "sgd", "epochs": 2, "batch_size": 8, "learning_rate": 0.1, "momentum": 0.5},
    "quality": {"evidence": []},
}


AT_SERVER = "data.labels={at = 'server', rows = 60}"
HEADS = ("client.hidden=16", "client.width=8", "local.epochs=1", "local.batch_size=20")
NEEDED = {
    **dict.fromkeys(("fed-byol", "fedu", "fedema"), HEADS),
    "orchestra": (*HEADS, "client.clusters=8", "client.own_clusters=4", "aggregate.steps=20"),
    "semifl": (AT_SERVER, "client.threshold=0.5"),
    "server-only": (AT_SERVER,),
    "ds-fl": ("data.open=40",),
    "fedmatch": ("data.labels={at = 'clients', share = 0.3}", "local.learning_rate=0.01", "client.threshold=0.4"),
}
"""What some algorithms cannot do without."""


def blobs(rows: int = 400, classes: int = 3, seed: int = 0) -> DataSet:
    """Classes as clouds of points that a small network can tell apart."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    centres = rng.normal(0, 2, (classes, 5))
    x = (centres[labels] + rng.normal(0, 1, (rows, 5))).astype(np.float32)
    return from_arrays(x, labels, name="blobs", scale="none")


def experiment(*sets: str, **options: Any) -> Experiment:
    return resolve(BASE, sets=(*NEEDED.get(options.get("algorithm", ""), ()), *sets), **options)


def prepared(*sets: str, dataset: DataSet | None = None, **options: Any) -> PreparedRun:
    return prepare_run(experiment(*sets, **options), RunInputs(dataset=dataset or blobs()))


def round_context(parts: Payload, **known: Any) -> RoundContext:
    """What a collection is told of a round; the first of a simulation, unless otherwise `known`."""
    context: dict[str, Any] = {
        "round": 1,
        "seed": 0,
        "tasks": [],
        "until": UNTIL_ALL,
        "counts": {},
        "start_fold": None,
        "expected": ExpectedReply(parts=parts, reply_parts=("model",), reference=None),
        "selected": 0,
        "state": {},
        "emulated_update": None,
        "byte_scale": 1.0,
    }
    return RoundContext(**context | known)


def write_toml(folder: Path, **options: Any) -> Path:
    """The small world as a configuration file over digits, for tests of the command line."""
    from winnow.config.resolve import to_toml

    path = folder / "small.toml"
    path.write_text(to_toml(experiment(**options)))
    return path
