"""One row of the table, for one seed: training alone, of pooled rows, or of both parties, and F1 on both tests."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import f1_score

from winnow.config.resolve import resolve
from winnow.data import from_arrays
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.learn.local_optimiser import Sgd
from winnow.papers.phones.party_rows import PackedRows, Party, find_prepared, read_parties
from winnow.papers.result_json_lines import MeasuredResultLine
from winnow.privacy.dp.branch_update import PrivateBranchUpdate
from winnow.privacy.dp.privacy_loss import epsilon, least_noise

RATES = (0.2, 0.5)
"""Learning rates that every row may choose from, by its party's validation sentences."""
ROUNDS, STEPS, BATCH, DELTA, TABLE_NOISE = 20, 60, 128, 1e-5, 5.0


@dataclass(frozen=True, kw_only=True)
class TransferRow:
    name: str
    title: str
    parties: tuple[tuple[str, ...], ...]
    """Whose rows each client of the federation has."""
    fused: bool = True
    sounds: bool = True
    epsilon: float = inf
    phone_length: float | None = None


@dataclass(frozen=True, kw_only=True)
class TransferSetting:
    item: str
    speech: int
    text: int
    rounds: int = ROUNDS
    directory: Path | None = None


def measure_row(setting: TransferSetting, row: TransferRow, seed: int) -> MeasuredResultLine:
    """The best rate by validation for each party, and its F1 on the test sentences."""
    parties = read_parties(find_prepared(setting.directory), setting.speech, setting.text, seed)
    tried = [_trained(setting, row, parties, seed, rate) for rate in RATES]
    scores: dict[str, float] = {}
    for party in {each for client in row.parties for each in client}:
        best = max(tried, key=lambda models: _f1(models[party], parties[party].validation))
        scores[party] = round(100 * _f1(best[party], parties[party].test), 3)
    return MeasuredResultLine(item=setting.item, row=row.name, seed=seed, values=scores)


def _trained(
    setting: TransferSetting, row: TransferRow, parties: Mapping[str, Party], seed: int, rate: float
) -> dict[str, torch.nn.Module]:
    """By party, the model that it has at the end."""
    held = [_joined([parties[name].training for name in names]) for names in row.parties]
    owners = np.repeat(np.arange(len(held)), [len(rows.y) for rows in held])
    rows = _joined(held)
    sizes = tuple(len(each.y) for each in held)
    table: dict[str, Any] = {
        "rounds": setting.rounds,
        "seed": seed,
        "data": {"reference": 1, "test": 0},
        "model": {"name": "phones", "fused": row.fused, "sounds": row.sounds, "phone_length": row.phone_length},
        "select": {"fraction": 1.0},
        "local": {"name": "sgd", "learning_rate": rate, "momentum": 0.0, "batch_size": BATCH, "steps": STEPS},
        "client": _client(row.epsilon, setting.rounds, sizes),
        "aggregate": {"name": "partial"},
        "engine": {"execution": "loop"},
        "quality": {"evidence": []},
    }
    wanted = resolve(table, algorithm="fedavg", has_owners=True)
    data = from_arrays(rows.x, rows.y, owners=owners, classes=2, scale="none", name="phones")
    result = run_experiment(wanted, inputs=RunInputs(dataset=data), report=False)
    models = {k: result.personal(k) for k in range(len(held))}
    return {name: models[k] for k, names in enumerate(row.parties) for name in names}


@cache
def _client(budget: float, rounds: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    if budget == inf:
        return {"name": "branch"}
    table = TABLE_NOISE / min(1.0, budget / 4)
    return {
        "name": "dp-branch",
        "noise_multiplier": least_noise(lambda noise: _spent(noise, table, rounds, sizes) <= budget),
        "table_noise": table,
        "clip": 1.0,
        "delta": DELTA,
        "epsilon": budget,
    }


def _spent(noise: float, table: float, rounds: int, sizes: tuple[int, ...]) -> float:
    """The worst party's ε after all rounds, its table included. One row is the reference set, so one less may train."""
    client = PrivateBranchUpdate(noise_multiplier=noise, table_noise=table, delta=DELTA)
    local = Sgd(learning_rate=1.0, batch_size=BATCH, steps=STEPS)
    return max(
        epsilon([client.release(local, size, rounds), *client.further_releases(rounds)], DELTA)
        for each in sizes
        for size in (each, each - 1)
    )


def _joined(parts: list[PackedRows]) -> PackedRows:
    return PackedRows(np.concatenate([each.x for each in parts]), np.concatenate([each.y for each in parts]))


@torch.no_grad()
def _f1(model: torch.nn.Module, rows: PackedRows) -> float:
    """The mean of both classes' F1."""
    predicted = model(torch.from_numpy(rows.x)).argmax(1).numpy()
    return float(f1_score(rows.y, predicted, average="macro"))
