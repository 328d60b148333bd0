"""What a new user does in the first hour, from the documentation alone, each from raw data to a result."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import winnow

ROWS = 600
SETTINGS: dict[str, Any] = {"algorithm": "fedavg", "clients": 4, "rounds": 6, "progress": False}


@pytest.fixture(scope="module")
def patients() -> pandas.DataFrame:
    """Five hospitals' patients, with missing values and text; who has much glucose is ill."""
    rng = np.random.default_rng(7)
    glucose = rng.normal(6, 2, ROWS)
    frame = pandas.DataFrame(
        {
            "age": rng.integers(20, 90, ROWS).astype(float),
            "glucose": glucose,
            "ward": rng.choice(["east", "west", "icu"], ROWS),
            "hospital": rng.choice(["Altona", "Berne", "Cork", "Derby", "Essen"], ROWS),
            "diagnosis": np.where(glucose + rng.normal(0, 0.3, ROWS) > 6, "ill", "well"),
        }
    )
    frame.loc[::7, "age"] = np.nan
    frame.loc[::11, "ward"] = None
    return frame


@pytest.fixture(scope="module")
def result(patients: pandas.DataFrame) -> winnow.Result:
    return winnow.run(
        data=patients,
        targets=["diagnosis"],
        owner="hospital",
        metric="auc",
        metrics=["accuracy"],
        local_test=0.2,
        algorithm="fedavg",
        rounds=8,
        progress=False,
    )


def test_a_frame_with_missing_values_and_text(result: winnow.Result) -> None:
    assert result.classes == ("ill", "well")
    assert sorted(result.client_names) == ["Altona", "Berne", "Cork", "Derby", "Essen"]
    assert result.best is not None
    assert result.best > 0.9


def test_every_hospital_has_a_verdict(result: winnow.Result, patients: pandas.DataFrame) -> None:
    told = pandas.DataFrame(result.clients)
    assert list(told) == ["name", "samples", "invited", "score", "verdict", "evidence"]
    assert sorted(told["name"]) == sorted(patients["hospital"].unique())
    assert set(told["verdict"]) <= {"fine", "different", "suspect", "harmful", "cannot tell"}
    assert told["invited"].tolist() == [8] * 5


def test_the_report_calls_hospitals_by_their_names(result: winnow.Result, tmp_path: Path) -> None:
    page = result.report(tmp_path / "report.html").read_text("utf-8")
    figures = page[page.index("Client selection") :]
    for name in ("Altona", "Berne", "Cork", "Derby", "Essen"):
        assert name in figures


def test_auc_and_a_confusion_matrix_by_hospital(result: winnow.Result, patients: pandas.DataFrame) -> None:
    rows = {row["name"]: row for row in result.by_client}
    assert sorted(rows) == sorted(patients["hospital"].unique())
    for row in rows.values():
        assert 0.5 < row["auc"] <= 1
        assert np.sum(row["confusion"]) == row["samples"]
    assert result.confusion is not None
    assert [each["class"] for each in result.per_class] == ["ill", "well"]


def test_a_prediction_on_raw_rows_in_a_new_process(result: winnow.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model")
    (tmp_path / "rows.csv").write_text("age,glucose,ward\n44,11.5,icu\n,1.0,a ward that nobody has seen\n")
    program = (
        "import pandas, winnow; "
        "print(*winnow.load('model').predict(pandas.read_csv('rows.csv')))"  # another process, and raw rows
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout == "ill well\n", done.stderr


def test_a_model_with_two_inputs() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(20, 4), nn.Linear(3 + 4, 2)

        def forward(self, values: Tensor, words: Tensor) -> Tensor:
            out: Tensor = self.head(torch.cat([values, self.words(words).mean(1)], 1))
            return out

    rng = np.random.default_rng(8)
    values = rng.normal(size=(ROWS, 3)).astype(np.float32)
    words = rng.integers(0, 20, (ROWS, 5))
    y = (values.sum(1) > 0).astype(np.int64)
    made = winnow.run(model=Both(), data=({"values": values, "words": words}, y), **SETTINGS)
    assert made.best is not None
    assert made.best > 0.8
    assert type(made.model) is Both
    assert (made.predict({"values": values, "words": words}) == y).mean() > 0.8


def test_a_transformer_with_a_dict_of_outputs() -> None:
    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(20, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
            self.head = nn.Linear(8, 2)

        def forward(self, ids: Tensor) -> dict[str, Tensor]:
            hidden = self.layer(self.words(ids)).mean(1)
            return {"hidden": hidden, "logits": self.head(hidden)}

    ids = np.random.default_rng(2).integers(0, 20, (ROWS, 6))
    y = (ids[:, 0] > 9).astype(np.int64)
    local = {"name": "adam", "learning_rate": 0.01}
    made = winnow.run(model=Transformer(), data=(ids, y), tokens=True, local=local, **SETTINGS)
    assert made.best is not None
    assert made.best > 0.6


STEP = """
import numpy as np, torch, winnow

def step(model, batch):
    return torch.nn.functional.cross_entropy(model(batch.x), batch.y, label_smoothing=0.1)

net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
result = winnow.run("demo", model=net, data="digits", step=step, algorithm="fedavg", rounds=2, clients=4)
print(result)
"""


def test_a_training_step_of_ones_own() -> None:
    made: dict[str, Any] = {}
    exec(compile(STEP, "mine.py", "exec"), made)
    assert made["result"].best > 0.1


@pytest.mark.slow(part="deploy")
def test_the_same_program_between_organisations(tmp_path: Path) -> None:
    """At two sites, which are real processes with certificates."""
    (tmp_path / "mine.py").write_text(STEP)
    command = [sys.executable, "-m", "winnow.cli", "local", "run", "mine.py", "--sites", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout + done.stderr
