"""What comes out of a run is used elsewhere: on raw rows, in a new process, from a folder that may lie."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import winnow
from command_line import call, write_tiny
from support.needs import PROC
from winnow.core import ModelError, RunError, WinnowError
from winnow.experiment.model_export import import_onnxruntime
from winnow.experiment.model_folder import digest_of_state
from winnow.learn.models import ModelSettings, build_model

ROWS = 400


def patients() -> pd.DataFrame:
    """Text, missing values and wide units: nothing that a model could take as it is."""
    rng = np.random.default_rng(0)
    age, glucose, ward = rng.normal(50, 12, ROWS), rng.normal(9500, 1500, ROWS), rng.choice(["north", "south"], ROWS)
    table = pd.DataFrame({"age": age, "glucose": glucose, "ward": ward, "hospital": rng.choice(list("abcd"), ROWS)})
    table["diagnosis"] = np.where(age / 12 + glucose / 1500 > 10.5, "ill", "well")
    table.loc[rng.choice(ROWS, 30, replace=False), "age"] = np.nan
    return table


@pytest.fixture(scope="module")
def result() -> winnow.Result:
    return winnow.run(data=patients(), targets=["diagnosis"], owner="hospital", rounds=12, progress=False)


@pytest.fixture
def saved(result: winnow.Result, tmp_path: Path) -> Path:
    return result.save(tmp_path / "saved")


def numbers_model(rounds: int = 2, **settings: Any) -> winnow.Result:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    return winnow.run(data=(x, (x.sum(1) > 0).astype(int)), rounds=rounds, progress=False, **settings)


# Raw rows -------------------------------------------------------------------------------------------------------------


def test_raw_rows_give_labels_as_the_data_had_them(result: winnow.Result) -> None:
    table = patients()
    new = table.drop(columns=["diagnosis", "hospital"])
    predicted = result.predict(new)
    assert set(predicted) == {"ill", "well"}
    assert (predicted == table.diagnosis).mean() > 0.85
    shares = result.predict_proba(new)
    assert result.classes == ("ill", "well")
    np.testing.assert_array_equal(np.where(shares[:, 0] > 0.5, "ill", "well"), predicted)
    np.testing.assert_allclose(shares.sum(1), 1)


def test_rows_may_come_in_any_form_and_order(result: winnow.Result) -> None:
    new = patients().drop(columns=["diagnosis", "hospital"])
    expected = result.predict(new)
    np.testing.assert_array_equal(result.predict(new[["ward", "glucose", "age"]]), expected)
    np.testing.assert_array_equal(result.predict(new.to_dict("list")), expected)
    np.testing.assert_array_equal(result.predict(new.to_dict("records")), expected)
    one = result.predict([{"age": 71, "glucose": 12_000, "ward": "a ward that was never seen"}])
    assert one.tolist() == ["ill"]


def test_a_regression_answers_in_its_own_units() -> None:
    table = patients()[["glucose", "ward"]]
    table["cost"] = 4_000 + 2 * table.glucose + 3_000 * (table.ward == "north")
    result = winnow.run(data=table, targets=["cost"], clients=4, select={"fraction": 1.0}, rounds=25, progress=False)
    assert np.abs(result.predict(table) - table.cost).mean() < 0.2 * table.cost.std()
    assert result.saved.classes is None
    with pytest.raises(WinnowError, match="a regression has no probabilities"):
        result.predict_proba(table)


def test_a_missing_column_is_named(result: winnow.Result) -> None:
    with pytest.raises(WinnowError, match="has no column 'glucose'"):
        result.predict(patients()[["age", "ward"]])


def test_predictions_do_not_depend_on_what_is_done_to_the_model() -> None:
    result = numbers_model(model=nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)))
    x = np.random.default_rng(2).normal(size=(50, 3))
    before = result.predict_proba(x)
    result.model.train()
    np.testing.assert_array_equal(result.predict_proba(x), before)


def test_what_a_model_lacks_that_clients_keep_is_said() -> None:
    result = numbers_model(algorithm="fedrep", model="mlp")
    with pytest.raises(ModelError, match=r"stay with each client.*result\.personal"):
        result.predict(np.zeros((1, 3)))
    assert len(result.personal(0)(torch.zeros(1, 3))) == 1


# Folders --------------------------------------------------------------------------------------------------------------

PREDICT = """
import sys, winnow
print(",".join(winnow.load(sys.argv[1]).predict([{"age": 71, "glucose": 12000, "ward": "north"}])))
"""


def test_a_saved_model_predicts_in_a_new_process(saved: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PREDICT, saved], capture_output=True, text=True, check=True)
    assert done.stdout == "ill\n"


def test_loading_gives_back_everything(result: winnow.Result, saved: Path, tmp_path: Path) -> None:
    loaded = winnow.load(saved)
    new = patients().drop(columns="diagnosis")
    np.testing.assert_array_equal(loaded.predict_proba(new), result.predict_proba(new))
    assert loaded.preprocessing == result.preprocessing
    assert loaded.info == result.saved.info
    again = winnow.load(loaded.save(tmp_path / "again"))
    np.testing.assert_array_equal(again.predict_proba(new), result.predict_proba(new))
    assert {path.name for path in saved.iterdir()} == {"model.json", "model.safetensors", "model-card.md"}


class Own(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(torch.tanh(self.body(x))), "hidden": x}


def test_a_model_of_ones_own_needs_its_code(tmp_path: Path) -> None:
    result = numbers_model(model=Own())
    folder, x = result.save(tmp_path / "own"), np.random.default_rng(2).normal(size=(50, 3))
    with pytest.raises(ModelError, match=r"does not contain the code of the model, Own; pass it: model="):
        winnow.load(folder)
    fresh = Own()
    before = fresh.head.weight.clone()
    loaded = winnow.load(folder, fresh)
    np.testing.assert_array_equal(loaded.predict_proba(x), result.predict_proba(x))
    assert torch.equal(fresh.head.weight, before)
    with pytest.raises(ModelError, match=r"body.weight is \(8, 3\) there, and \(9, 3\) here"):
        winnow.load(folder, Own(9))
    with pytest.raises(ModelError, match=r"it has no 0\.weight"):
        winnow.load(folder, nn.Sequential(nn.Linear(3, 2)))


def test_a_factory_runs_only_when_the_caller_names_it(tmp_path: Path) -> None:
    code = tmp_path / "net.py"
    code.write_text(
        "from pathlib import Path\nfrom torch import nn\nPath(__file__).with_name('ran').touch()\n"
        "def network(shape, outputs):\n    return nn.Sequential(nn.Linear(shape[0], outputs))\n"
    )
    result = numbers_model(model={"name": "python", "factory": f"{code}:network"})
    folder = result.save(tmp_path / "saved")
    (tmp_path / "ran").unlink()
    with pytest.raises(ModelError, match=r'factory="net\.py:network" \(--factory\), which runs that file'):
        winnow.load(folder)
    assert not (tmp_path / "ran").exists()
    assert str(tmp_path) not in (folder / "model.json").read_text()
    loaded = winnow.load(folder, factory=f"{code}:network")
    np.testing.assert_array_equal(loaded.predict(np.eye(3)), result.predict(np.eye(3)))


def test_a_run_folder_holds_a_model_that_says_what_it_is(tmp_path: Path) -> None:
    result = numbers_model(out=tmp_path / "run", name="trial")
    loaded = winnow.load(tmp_path / "run")
    np.testing.assert_array_equal(loaded.predict(np.eye(3)), result.predict(np.eye(3)))
    card = (tmp_path / "run" / "model-card.md").read_text()
    for expected in ("# trial", "fedprof, 2 rounds, seed 0", "no differential privacy", "20, with 160 samples"):
        assert expected in card
    assert f"{result.summary.test_best.value:.4f}" in card
    assert "## Limits of use" in card
    longer = numbers_model(out=tmp_path / "run", name="trial", rounds=4, resume=True)
    assert winnow.load(tmp_path / "run").info.rounds == 4
    assert longer.saved.info == winnow.load(tmp_path / "run").info


def test_a_folder_with_something_else_is_left_alone(result: winnow.Result, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="is not empty and contains no model"):
        result.save(tmp_path)
    numbers_model(out=tmp_path / "run", rounds=1)
    with pytest.raises(RunError, match="is a run folder"):
        result.save(tmp_path / "run")
    with pytest.raises(RunError, match=r"contains no model: model\.json is missing"):
        winnow.load(tmp_path)


# Liars ----------------------------------------------------------------------------------------------------------------


def edited(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "model.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def set_to(value: Any, *keys: Any) -> Callable[[dict[str, Any]], object]:
    def change(table: Any) -> None:
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return change


COLUMNS = ("preprocessing", "columns")


@pytest.mark.parametrize(
    "lie",
    [
        set_to(2, "format"),
        set_to({"name": "no-such-model"}, "model"),
        set_to({"name": "mlp", "hidden": [65_536] * 20}, "model"),  # terabytes, if anybody believed it
        set_to({"name": "mlp", "hidden": [1] * 100_000}, "model"),
        set_to({"name": "lstm", "layers": 64}, "model"),
        set_to({"name": ["mlp"]}, "model"),
        set_to([2**31] * 8, "sample_shape"),
        set_to([-1], "sample_shape"),
        set_to([7], "sample_shape"),
        set_to(3, "outputs"),
        set_to(2**24, "built_outputs"),
        set_to("../../etc/passwd", "parameters", "file"),
        set_to("0" * 64, "parameters", "digest"),
        set_to("yes", "extra"),
        set_to("one", "info", "rounds"),
        set_to(["x"] * 3, "preprocessing", "classes"),
        set_to(["a", "b", "c"], "preprocessing", "classes"),
        set_to(0, "preprocessing", "columns", 0, "width"),
        set_to("python", "preprocessing", "columns", 0, "kind"),
        set_to([], "preprocessing", "columns"),
        set_to([{"name": "x" * 9_999, "kind": "category", "categories": [*map(str, range(99))]}] * 200, *COLUMNS),
    ],
)
def test_a_description_that_lies_is_refused_in_one_line(saved: Path, lie: Callable[[dict[str, Any]], object]) -> None:
    edited(saved, lie)
    with pytest.raises(WinnowError) as refused:
        winnow.load(saved).predict(patients())
    assert str(saved) in str(refused.value) or "rows" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("shape", [[2**31] * 3, [2**31, 2**31, 2]])
def test_a_sample_whose_size_overflows_is_too_large(saved: Path, shape: list[int]) -> None:
    edited(saved, set_to(shape, "sample_shape"))
    with pytest.raises(RunError, match="a sample is too large"):
        winnow.load(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b"{}"])
def test_a_description_that_is_none_is_refused_in_one_line(saved: Path, content: bytes) -> None:
    (saved / "model.json").write_bytes(content)
    with pytest.raises(RunError, match=r"model\.json is damaged, or not Winnow's") as refused:
        winnow.load(saved)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda state: state | {"1.weight": state["1.weight"] + 1}, "its contents have changed"),
        (lambda state: state | {"1.weight": state["1.weight"].double()}, "torch.float64"),
        (lambda state: state | {"1.weight": state["1.weight"][1:]}, "does not fit this model: 1.weight"),
        (lambda state: state | {"more": torch.zeros(3)}, "which has no more"),
        (lambda state: {name: tensor for name, tensor in state.items() if name != "1.weight"}, "it has no 1.weight"),
    ],
)
def test_parameters_that_are_not_those_are_refused(
    saved: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], reason: str
) -> None:
    path = saved / "model.safetensors"
    save_file(change(load_file(path)), path)
    with pytest.raises(WinnowError, match=reason) as refused:
        winnow.load(saved)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, (2**60).to_bytes(8, "little") + b"{}", b"cposix\nsystem\n."])
def test_a_file_of_parameters_that_is_none_is_refused(saved: Path, content: bytes) -> None:
    (saved / "model.safetensors").write_bytes(content)
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        winnow.load(saved)
    (saved / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model\.safetensors is missing"):
        winnow.load(saved)


@pytest.mark.parametrize(
    ("model", "preprocessing"),
    [
        ({"name": "lstm", "vocabulary": 5}, {}),
        ({"name": "linear"}, {"array": {"shape": [4], "kind": "token"}}),
        ({"name": "linear"}, {"inputs": [{"name": "a", "shape": [4]}]}),
        ({"name": "linear"}, {"targets": [{}, {}]}),
    ],
)
def test_a_model_that_does_not_go_with_its_preprocessing_is_refused_in_one_line(
    saved: Path, model: dict[str, Any], preprocessing: dict[str, Any]
) -> None:
    built = 1 if "targets" in preprocessing else 2
    module = build_model(ModelSettings.members[model["name"]].model_validate(model), (4,), built, seed=0)
    save_file(module.state_dict(), saved / "model.safetensors")
    changed = {"model": model, "sample_shape": [4], "built_outputs": built, "preprocessing": preprocessing}
    digest = digest_of_state(module.state_dict())
    edited(saved, lambda table: table.update(changed) or table["parameters"].update(digest=digest))
    with pytest.raises(ModelError, match="the model") as refused:
        winnow.load(saved).predict({"a": np.zeros((3, 4))} if "inputs" in preprocessing else np.zeros((3, 4)))
    assert "\n" not in str(refused.value)


def test_names_in_a_folder_do_not_command_the_terminal(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(saved, set_to("\x1b[2J", *COLUMNS, 0, "name"))
    edited(saved, set_to("\x1b[2J", "info", "name"))
    assert "\x1b" not in repr(winnow.load(saved))
    patients().to_csv(tmp_path / "rows.csv")
    left = call(capsys, "predict", saved, tmp_path / "rows.csv")
    assert left.code == 2
    assert "has no column '?[2J'" in left.err


def test_a_name_cannot_write_into_the_card(result: winnow.Result) -> None:
    info = replace_info(result, name="# evil\n\n| a | b |", data="x\n<script>alert(1)</script>")
    card = replace(result.saved, info=info).card
    assert "<script" not in card
    assert "\n| a | b |" not in card


def replace_info(result: winnow.Result, **changed: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(result.saved.info, **changed)


# Other programs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> Callable[[winnow.Result], Any]:
    def export(result: winnow.Result) -> Any:
        return import_onnxruntime().InferenceSession(str(result.export_onnx(tmp_path / "model.onnx")))

    return export


IMPORT_ONNXRUNTIME = """
import os
from winnow.experiment.model_export import import_onnxruntime
import_onnxruntime()
print(any("onnxruntime.db" in os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")))
"""


@PROC.unless(Path("/proc/self/fd").exists())
def test_onnxruntime_starts_without_telemetry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    environment = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", IMPORT_ONNXRUNTIME]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "False\n"
    assert not list(tmp_path.rglob("*"))


def test_onnx_takes_raw_numbers_and_gives_probabilities(session: Callable[[winnow.Result], Any]) -> None:
    table = patients()[["age", "glucose", "diagnosis"]]
    result = winnow.run(data=table, targets=["diagnosis"], rounds=3, progress=False)
    opened = session(result)
    raw = table[["age", "glucose"]].to_numpy()
    assert np.isnan(raw).any()
    (found,) = opened.run(["probabilities"], {"rows": raw})
    np.testing.assert_allclose(found, result.predict_proba(table), atol=1e-5)
    described = json.loads(opened.get_modelmeta().custom_metadata_map["winnow"])
    assert described["columns"] == ["age", "glucose"]
    assert described["classes"] == ["ill", "well"]


@pytest.mark.slow(part="executions")
def test_onnx_of_categories_takes_features(result: winnow.Result, session: Callable[[winnow.Result], Any]) -> None:
    features = result.preprocessing.transform(patients())
    (found,) = session(result).run(None, {"features": features})
    np.testing.assert_allclose(found, result.predict_proba(patients()), atol=1e-5)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scan, self.words, self.head = nn.Linear(3, 4), nn.Embedding(20, 4), nn.Linear(8, 1)

    def forward(self, scan: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.scan(scan), self.words(words).mean(1)], 1))


@pytest.mark.slow(part="executions")
def test_several_inputs_and_units_survive_onnx_and_torchscript(
    session: Callable[[winnow.Result], Any], tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    inputs = {"scan": rng.normal(size=(200, 3)).astype(np.float32), "words": rng.integers(0, 20, (200, 5))}
    dose = 500 + 100 * inputs["scan"].sum(1)
    result = winnow.run(model=TwoInputs(), data=(inputs, dose), rounds=2, progress=False)
    expected = result.predict(inputs)
    (found,) = session(result).run(["values"], inputs)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-4)
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.load"):
        script = torch.jit.load(result.export_torchscript(tmp_path / "model.pt"))
    tensors = [torch.from_numpy(values) for values in inputs.values()]
    np.testing.assert_allclose(script(*tensors).numpy()[:, 0], expected, rtol=1e-4)


class Branching(nn.Module):
    """What it does depends on the values, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) if float(x.sum()) > 0 else -self.head(x)


def test_what_cannot_be_exported_is_said_in_one_line(tmp_path: Path) -> None:
    result = replace(numbers_model().saved, model=Branching())
    with pytest.raises(ModelError, match="the model cannot be exported to ONNX") as refused:
        result.export_onnx(tmp_path / "model.onnx")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


class CountsRows(nn.Module):
    """A trace keeps the number of rows that it saw as a constant, and is right for no other number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(x) * torch.tensor([1.0, float(len(x))])
        return outputs


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_failed_export_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_text("of yesterday")
    with pytest.raises(ModelError, match="does not give the outputs of this one"):
        replace(numbers_model().saved, model=CountsRows()).export_torchscript(path)
    assert path.read_text() == "of yesterday"
    assert list(tmp_path.iterdir()) == [path]


# Commands -------------------------------------------------------------------------------------------------------------


def test_rows_of_a_file_are_predicted_beside_what_they_were(
    saved: Path, result: winnow.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, rows, out = patients(), tmp_path / "rows.csv", tmp_path / "out.csv"
    table[["hospital", "ward", "age", "glucose"]].to_csv(rows, index=False)
    done = call(capsys, "predict", saved, rows)
    assert done.code == 0, done.err
    lines = list(csv.DictReader(done.out.splitlines()))
    assert [line["prediction"] for line in lines] == result.predict(table).tolist()
    assert [line["hospital"] for line in lines] == table.hospital.tolist()
    assert call(capsys, "predict", saved, rows, "--out", out, "--probabilities").code == 0
    written = pd.read_csv(out)
    np.testing.assert_allclose(written["probability ill"], result.predict_proba(table)[:, 0])


def test_blank_lines_do_not_move_predictions_to_other_rows(
    saved: Path, result: winnow.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text('age,glucose,ward\n71,12000,north\n   \n20, 5000 ,"so\n\nuth"\n\n75,12500,south\n')
    done = call(capsys, "predict", saved, rows)
    assert done.code == 0, done.err
    expected = result.predict(
        {"age": [71, 20, 75], "glucose": [12_000, 5_000, 12_500], "ward": ["north", "?", "south"]}
    )
    assert set(expected) == {"ill", "well"}
    assert list(csv.reader(done.out.splitlines(keepends=True)))[1:] == [
        ["71", "12000", "north", expected[0]],
        ["20", " 5000 ", "so\n\nuth", expected[1]],
        ["75", "12500", "south", expected[2]],
    ]


def test_a_quoted_empty_cell_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = winnow.run(data=patients()[["age", "diagnosis"]], targets=["diagnosis"], rounds=2, progress=False)
    rows = tmp_path / "rows.csv"
    rows.write_text('age\n71\n""\n20\n')
    done = call(capsys, "predict", result.save(tmp_path / "saved"), rows)
    assert done.code == 0, done.err
    predicted = result.predict({"age": [71.0, np.nan, 20.0]})
    lines = list(csv.reader(done.out.splitlines()))
    assert lines[1:] == [["71", predicted[0]], ["", predicted[1]], ["20", predicted[2]]]


@pytest.mark.slow(part="deploy")
def test_a_pipe_that_nobody_reads_ends_the_command_quietly(saved: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("age,glucose,ward\n71,12000,north\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "winnow.cli", "predict", saved, rows]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


def test_parquet_rows_make_a_parquet_file(
    saved: Path, result: winnow.Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, out = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    patients().to_parquet(rows)
    assert "give one for the output" in call(capsys, "predict", saved, rows).err
    assert call(capsys, "predict", saved, rows, "--out", out).code == 0
    assert pd.read_parquet(out).prediction.tolist() == result.predict(patients()).tolist()


def test_a_run_is_predicted_with_and_exported_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "run", write_tiny(tmp_path), "--out", tmp_path / "run", "--quiet").code == 0
    np.savez(tmp_path / "rows.npz", x=np.full((3, 1, 8, 8), 8.0))
    done = call(capsys, "predict", tmp_path / "run", tmp_path / "rows.npz")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "prediction"
    assert len(done.out.splitlines()) == 4
    assert "say what to write" in call(capsys, "export", tmp_path / "run").err
    done = call(capsys, "export", tmp_path / "run", "--torchscript", tmp_path / "m.pt", "--folder", tmp_path / "m")
    assert done.out == f"{tmp_path / 'm.pt'}\n{tmp_path / 'm'}\n"
    assert winnow.load(tmp_path / "m").classes == tuple(range(10))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rows.txt", "rows come in .csv"),
        ("none.csv", "there is no file"),
        ("short.csv", "has no column 'age'"),
        ("done.csv", "already has a column 'prediction'"),
        ("huge.csv", "column 'glucose', data row 2 is 1e+300, too large for a model"),
        ("quoted.csv", "data row 2 has 1 cell but the header has 3"),
    ],
)
def test_a_mistake_is_one_line(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, reason: str
) -> None:
    (tmp_path / "rows.txt").write_text("age\n1\n")
    (tmp_path / "short.csv").write_text("glucose,ward\n1,north\n")
    (tmp_path / "done.csv").write_text("age,glucose,ward,prediction\n71,12000,north,ill\n")
    (tmp_path / "huge.csv").write_text("age,glucose,ward\n71,12000,north\n71,1e300,north\n")
    (tmp_path / "quoted.csv").write_text('age,glucose,ward\n71,12000,north\n""\n')
    done = call(capsys, "predict", saved, tmp_path / name)
    assert done.code == 2
    assert reason in done.err
    assert done.err.count("\n") == 1


def test_the_table_of_the_rows_is_not_overwritten(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("age,glucose,ward\n71,12000,north\n")
    done = call(capsys, "predict", saved, rows, "--out", rows)
    assert (done.code, "is the table of the rows itself" in done.err) == (2, True)
    assert rows.read_text().count("\n") == 2
