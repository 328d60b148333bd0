"""Preprocessing: what becomes of raw rows and of outputs, against scikit-learn's calculation, and saved as JSON."""

import json
from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as arrow
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler
from torch.utils.data import Dataset

import winnow
from winnow.config.resolve import resolve
from winnow.core import DataError
from winnow.data import DataSettings, InputSpec, Preprocessing, federate, from_arrays, from_frame, from_torch, load
from winnow.data.preprocessing import Column, TargetSpec

ROWS = 60
MODEL = {"model": {"name": "linear"}, "local": {"name": "sgd"}}


def patients(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 10, rows)
    age[rng.random(rows) < 0.2] = np.nan
    ward = np.array(["north", "south", "east"], object)[rng.integers(0, 3, rows)]
    ward[rng.random(rows) < 0.1] = None
    return {
        "age": age,
        "dose": rng.integers(1, 9, rows),
        "ward": ward,
        "hospital": np.array(["B", "A"], object)[rng.integers(0, 2, rows)],
        "outcome": np.array(["well", "ill"], object)[(np.arange(rows)) % 2],
    }


def records(columns):
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


FRAMES = {
    "pandas": pd.DataFrame,
    "pandas, nullable": lambda columns: pd.DataFrame(columns).convert_dtypes(),
    "pandas, categories": lambda columns: pd.DataFrame(columns).astype({"ward": "category"}),
    "polars": lambda columns: pl.DataFrame(columns, nan_to_null=True),
    "arrow": lambda columns: arrow.Table.from_pandas(pd.DataFrame(columns)),
    "dict": dict,
    "records": records,
}


@pytest.mark.parametrize(("scale", "scaler"), [("default", StandardScaler), ("minmax", MinMaxScaler)])
@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_every_kind_of_frame_becomes_what_scikit_learn_makes_of_it(frame, scale, scaler):
    columns = patients()
    data = from_frame(frame(columns), targets="outcome", owner="hospital", scale=scale)
    numbers = make_pipeline(SimpleImputer(strategy="median"), scaler())
    expected = ColumnTransformer(
        [
            ("age", numbers, ["age"]),
            ("missing", SimpleImputer(strategy="constant", add_indicator=True), ["age"]),
            ("dose", scaler(), ["dose"]),
            (
                "ward",
                OneHotEncoder(sparse_output=False, handle_unknown="ignore", categories=[["east", "north", "south"]]),
                ["ward"],
            ),
        ]
    ).fit_transform(pd.DataFrame(columns))
    expected = np.delete(expected, 1, axis=1)  # the second imputer's numbers; its indicator stays
    other = [each is None for each in columns["ward"]]
    np.testing.assert_allclose(data.x, np.column_stack([expected, other]), atol=1e-5)
    assert data.preprocessing.features == (
        *("age", "age is missing", "dose"),
        *("ward = east", "ward = north", "ward = south", "ward = other"),
    )
    assert data.preprocessing.classes == ("ill", "well")
    assert data.owner_names == ("A", "B")


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())
def test_rows_are_transformed_to_what_was_trained_on(frame):
    rows = frame(patients())
    data = from_frame(rows, targets="outcome", features=("age", "dose", "ward"))
    saved = Preprocessing.from_json(json.loads(json.dumps(data.preprocessing.to_json())))
    assert saved == data.preprocessing
    np.testing.assert_array_equal(saved.transform(rows), data.x)


def test_frames_arrays_and_files_follow_one_scaling_rule(tmp_path):
    rng = np.random.default_rng(1)
    x, y = rng.normal(50, 9, (40, 2)), rng.integers(0, 2, 40)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", x=x, y=y)
    of_tables = [load(DataSettings(path=tmp_path / f"t.{kind}", targets="y")) for kind in ("csv", "parquet")]
    expected = StandardScaler().fit_transform(x)
    for data in (
        *of_tables,
        load(DataSettings(path=tmp_path / "t.npz")),
        from_arrays(x, y),
        from_frame(frame, targets="y"),
    ):
        np.testing.assert_allclose(data.x, expected, atol=1e-5)
        np.testing.assert_allclose(data.preprocessing.transform(x), expected, atol=1e-5)


def test_images_and_sequences_stay_as_they_are():
    images = np.random.default_rng(0).random((6, 1, 4, 4)).astype(np.float32)
    np.testing.assert_array_equal(from_arrays(images, [0, 1] * 3).x, images)
    series = images.reshape(6, 4, 4)
    np.testing.assert_array_equal(from_arrays(series, [0, 1] * 3).x, series)


def test_missing_unseen_and_other_values_of_later_rows():
    pre = from_frame(patients(), targets="outcome", owner="hospital").preprocessing
    dose = next(column for column in pre.columns if column.name == "dose")
    late = pre.transform({"age": [None], "dose": [None], "ward": ["attic"], "hospital": ["C"]})
    assert late[0, 0] == pytest.approx(
        pre.transform({"age": [pre.columns[0].fill], "dose": [1], "ward": ["east"]})[0, 0]
    )
    assert late[0, 1] == 1
    assert late[0, 2] == pytest.approx((dose.fill - dose.shift) / dose.width)
    assert late[0, 3:].tolist() == [0, 0, 0, 1]
    with pytest.raises(DataError, match="rows has no column 'ward'"):
        pre.transform({"age": [1.0], "dose": [1]})


def test_numbers_can_be_categories():
    data = from_frame({"code": [10, 9, 10, None], "y": [0, 1, 0, 1]}, targets="y", categorical=["code"])
    assert data.preprocessing.columns[0].categories == ("9", "10")
    assert data.x.tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("columns", "message"),
    {
        "all missing": ({"a": [None, None]}, "every value of column 'a' is missing; leave it out of features"),
        "mixed types": ({"a": [1, "x"]}, "column 'a' holds int and str; make it all numbers or all text"),
        "mixed text": ({"a": ["1", "x"]}, "column 'a', data row 2 holds 'x', and other rows hold numbers"),
        "dates": ({"a": [date(2020, 1, 1), None]}, "column 'a' holds dates or times; convert it to a number first"),
        "times": ({"a": np.array(["2020", "2021"], "M8[D]")}, "column 'a' holds dates or times"),
        "infinite": ({"a": [1.0, np.inf]}, "column 'a', data row 2 is inf"),
        "too large to scale": ({"a": [1.0, 1e308]}, "column 'a', data row 2 is 1e+308, too large to scale; correct it"),
        "ragged": ({"a": [[1, 2], [3]]}, "rows of column 'a' differ in shape; pad them to one length"),
        "text beside arrays": ({"a": [[1], [2]], "b": ["u", "v"]}, "input 'b' holds text; turn it into numbers"),
        "objects": ({"a": [{}, {}]}, "column 'a' holds dict; make it all numbers"),
    }.values(),
)
def test_a_column_that_cannot_be_used_is_named(columns, message):
    for frame in (columns, pd.DataFrame({name: list(values) for name, values in columns.items()})):
        with pytest.raises(DataError) as caught:
            from_frame({**{name: frame[name] for name in columns}, "y": [0, 1]}, targets="y", name="rows")
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_unusable_columns_that_are_no_features_do_no_harm():
    columns = {"a": [1.0, 2.0], "seen": [date(2020, 1, 1)] * 2, "y": [0, 1]}
    assert from_frame(pd.DataFrame(columns), targets="y", features=["a"]).x.shape == (2, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": "outcom"}, "no column 'outcom' (named as a target); did you mean 'outcome'"),
        ({"features": ["aeg"]}, "no column 'aeg' (named as a feature); did you mean 'age'"),
        ({"owner": "clinic"}, "no column 'clinic' (named as the owner)"),
        ({"categorical": ["hospital"]}, "column 'hospital' is named as categorical, but is not a feature"),
        ({"targets": "age", "task": "regression"}, "column 'age', data row"),
        ({"targets": ()}, "say which column to predict"),
        ({"features": ["age", "outcome"]}, "column 'outcome' is a target and cannot be a feature; leave it out"),
        ({"features": ["age", "hospital"]}, "column 'hospital' is the owner and cannot be a feature; leave it out"),
        ({"owner": "outcome"}, "column 'outcome' is the owner and cannot be a target"),
    ],
)
def test_columns_that_are_not_there_and_labels_that_are_missing(change, message):
    with pytest.raises(DataError) as caught:
        from_frame(pd.DataFrame(patients()), **{"targets": "outcome", "owner": "hospital", **change})
    assert message in str(caught.value)


@pytest.mark.parametrize("scale", ["default", "minmax", "none"])
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[0.0, 1e308], [0.0, -1e308]], [0, 1], r"(x|the input)\[0, 1\] is 1e\+308, too large"),
        ([[0.0], [1.0]], [-1e308, 1e308], r"y\[0(, 0)?\] is -1e\+308, too large"),
    ],
)
def test_numbers_that_are_too_large_in_arrays_are_told_by_their_place(scale, x, y, message):
    with pytest.raises(DataError, match=message) as caught:
        from_arrays(x, y, scale=scale)
    assert "\n" not in str(caught.value)


def test_columns_of_numbers_as_large_as_there_are_may_be_scaled_by_their_range():
    numbers = from_frame({"a": [1e308] * 4, "y": [0, 1, 0, 1]}, targets="y", scale="minmax")
    assert numbers.x.tolist() == [[0.0]] * 4


def test_later_rows_with_numbers_too_large_for_single_precision_are_refused_by_their_place():
    table = from_frame({"a": [1.0, 2.0], "y": [0, 1]}, targets="y").preprocessing
    array = from_arrays([[1.0], [2.0]], [0, 1]).preprocessing
    with pytest.raises(DataError, match=r"rows: column 'a', data row 2 is 1e\+300, too large for a model"):
        table.transform({"a": [1.0, 1e300]})
    with pytest.raises(DataError, match=r"rows: the input\[1, 0\] is 1e\+300, too large for a model"):
        array.transform([[1.0], [1e300]])
    with pytest.raises(DataError, match=r"rows: the input\[1, 0\] is 1e\+300, too large for a model"):
        Preprocessing().transform([[1.0], [1e300]])


def test_a_column_without_a_name_is_told():
    told = from_frame({"": [0, 1], "a": [1.0, 2.0], "y": [0, 1]}, targets="y").preprocessing.notice()
    assert told == (
        "preprocessing: a column without a name (pandas writes its index so) is a feature; name it or leave it out; "
        "numbers are scaled by column"
    )


def test_too_many_categories():
    columns = {"id": [f"patient {each}" for each in range(101)], "y": [0] * 101}
    with pytest.raises(DataError, match="column 'id' has 101 categories, more than 100; group them"):
        from_frame(columns, targets="y")


def test_infinity_among_numbers_that_are_categories():
    columns = {"room": [1.0, np.inf, 2.0, np.nan], "y": [0, 1, 0, 1]}
    with pytest.raises(DataError, match="column 'room', data row 2 is inf; correct it or empty that cell"):
        from_frame(columns, targets="y", categorical=["room"])
    fitted = from_frame({**columns, "room": [1.0, 2.5, 2.0, np.nan]}, targets="y", categorical=["room"]).preprocessing
    assert fitted.features == ("room = 1", "room = 2", "room = 2.5", "room = other")
    assert fitted.transform(columns).argmax(axis=1).tolist() == [0, 3, 1, 3]


def test_labels_keep_their_names():
    for y in ([0, 2, 2, 0], [-1, 1, 1, -1], [True, False, False, True], ["b", "a", "a", "b"]):
        data = from_arrays(np.eye(4), y, scale="none")
        assert data.classes == 2
        decoded = data.preprocessing.decode(np.eye(2)[data.y])
        assert decoded.tolist() == list(y)
    data = from_arrays(np.eye(4), [0, 2, 2, 0])
    assert data.preprocessing.notice() == "preprocessing: numbers are scaled by column; labels 0, 2 are classes 0, 1, …"
    assert from_arrays(np.eye(4), [0, 1, 1, 0], scale="none").preprocessing.notice() == ""
    assert from_frame(patients(), targets="outcome", owner="hospital").preprocessing.notice() == (
        "preprocessing: missing values of age are filled in, and marked in a feature of their own; "
        "ward one-hot, with a feature for other values; numbers are scaled by column; 3 columns make 7 features; "
        "labels ill, well are classes 0, 1, …"
    )


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", None], "the only label is 'a'"),
        (pd.Series(["a", None]), "the only label is 'a'"),
        (np.array(["a", np.nan], object), "the only label is 'a'"),
        ([1.5, np.nan], "y[1] is not a finite number"),
        (np.array([1, "a"], object), "column 'y' holds int and str"),
        ([[0, 1], [1]], "rows of y must be of one shape"),
    ],
)
def test_labels_that_are_missing_or_of_two_kinds(y, message):
    with pytest.raises(DataError) as caught:
        from_arrays(np.eye(2), y)
    assert message in str(caught.value)


def test_frames_without_names_or_rows():
    data = from_arrays(pd.DataFrame(np.arange(6.0).reshape(3, 2)), pd.Series(["a", "b", "a"]), scale="none")
    assert (data.preprocessing.features, data.x.tolist()) == (("0", "1"), [[0, 1], [2, 3], [4, 5]])
    with pytest.raises(DataError, match="there are no rows"):
        from_frame(pd.DataFrame({"a": [], "y": []}), targets="y")


def test_outputs_become_labels_probabilities_and_units():
    pre = Preprocessing(classes=("no", "yes"))
    assert pre.decode([[3.0, 1.0], [0.0, 2.0]]).tolist() == ["no", "yes"]
    assert pre.decode([[-1.0], [2.0]]).tolist() == ["no", "yes"]
    assert pre.decode(torch.tensor([-1.0, 2.0])).tolist() == ["no", "yes"]
    np.testing.assert_allclose(pre.probabilities([[0.0], [np.log(3)]]), [[0.5, 0.5], [0.25, 0.75]])
    logits = np.random.default_rng(0).normal(size=(5, 2)) * 50
    np.testing.assert_allclose(pre.probabilities(logits), torch.tensor(logits).softmax(1).numpy(), atol=1e-12)
    with pytest.raises(DataError, match="more outputs than the 2 classes"):
        pre.decode([[0, 0, 1]])
    y = np.random.default_rng(0).normal(100, 7, (20, 2))
    data = from_arrays(np.random.default_rng(1).normal(size=(20, 3)), y)
    np.testing.assert_allclose(data.y, StandardScaler().fit_transform(y), atol=1e-5)
    np.testing.assert_allclose(data.preprocessing.decode(data.y), y, rtol=1e-5)
    with pytest.raises(DataError, match="a regression has no probabilities"):
        data.preprocessing.probabilities(data.y)


# several inputs a sample


def two_inputs(rows=12):
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 50, (rows, 4)), rng.integers(0, 2, (rows, 4))
    image = rng.random((rows, 1, 3, 3)).astype(np.float32)
    return ids, mask, image, rng.integers(0, 2, rows)


def test_several_inputs_are_packed_side_by_side():
    ids, mask, image, y = two_inputs()
    tokens = from_arrays({"ids": ids, "mask": mask}, y)
    assert tokens.x.dtype == np.int64
    np.testing.assert_array_equal(tokens.x, np.concatenate([ids, mask], axis=1))
    assert [(each.name, each.shape, each.kind) for each in tokens.preprocessing.inputs] == [
        ("ids", (4,), "token"),
        ("mask", (4,), "token"),
    ]
    mixed = from_arrays((torch.tensor(ids), image), y)
    assert mixed.x.dtype == np.float32
    np.testing.assert_array_equal(mixed.x, np.concatenate([ids, image.reshape(len(y), -1)], axis=1).astype(np.float32))
    assert [each.name for each in mixed.preprocessing.inputs] == [None, None]
    np.testing.assert_array_equal(mixed.preprocessing.transform((ids, image)), mixed.x)
    numbers = np.random.default_rng(1).normal(7, 3, (len(y), 2))
    table = from_arrays({"ids": ids, "numbers": numbers}, y)
    np.testing.assert_allclose(table.x[:, 4:], StandardScaler().fit_transform(numbers), atol=1e-5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (lambda ids, mask, image: (ids, mask[:5]), "the inputs have 12, 5 rows; they must match"),
        (lambda ids, mask, image: (ids * (1 << 24), image), "goes beyond 2"),
        (lambda ids, mask, image: (ids, np.full((12, 2), np.nan)), "is not a finite number"),
    ],
)
def test_inputs_that_cannot_be_packed(x, message):
    *inputs, y = two_inputs()
    with pytest.raises(DataError, match=message):
        from_arrays(x(*inputs), y)


class HuggingFaceLike:
    """As `datasets.Dataset` presents itself: rows by number, columns by name."""

    def __init__(self, columns):
        self._columns = columns
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key):
        return self._columns[key] if isinstance(key, str) else {name: held[key] for name, held in self._columns.items()}


class Dicts(Dataset):
    def __init__(self, columns):
        self._rows = records(columns)

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, index):
        return {name: torch.tensor(value) for name, value in self._rows[index].items()}


def test_data_sets_of_dicts():
    ids, mask, _, y = two_inputs()
    columns = {"ids": ids.tolist(), "mask": mask.tolist(), "label": y.tolist()}
    expected = from_arrays({"ids": ids, "mask": mask}, y)
    for data in (
        from_frame(HuggingFaceLike(columns), targets="label"),
        from_torch(Dicts(columns), targets="label"),
        from_frame(records(columns), targets="label"),
        from_frame(pl.DataFrame(columns), targets="label"),
        from_frame(pd.DataFrame(columns), targets="label"),
    ):
        np.testing.assert_array_equal(data.x, expected.x)
        np.testing.assert_array_equal(data.y, expected.y)
        assert data.preprocessing.inputs == expected.preprocessing.inputs
    with pytest.raises(DataError, match="'train' is a data set itself; pass one of them"):
        winnow.run(data={"train": HuggingFaceLike(columns)}, targets="label")


def test_pairs_of_several_inputs_in_a_torch_data_set():
    ids, mask, _, y = two_inputs()
    pairs = [((torch.tensor(i), torch.tensor(m)), int(label)) for i, m, label in zip(ids, mask, y, strict=True)]
    np.testing.assert_array_equal(from_torch(pairs).x, np.concatenate([ids, mask], axis=1))


def test_targets_that_are_sequences():
    ids, *_ = two_inputs()
    labels = ids % 3
    labels[:, 3] = -100
    data = from_arrays(ids, labels, tokens=True)
    assert (data.classes, data.y.tolist()) == (3, labels.tolist())
    assert data.preprocessing.decode(np.eye(3)[labels[:, :3]]).tolist() == labels[:, :3].tolist()
    settings = DataSettings(clients=2, reference=2, test=2, corruptions=[{"name": "flipped-labels", "fraction": 1.0}])
    spoilt = federate(data, settings, seed=0).clients.y
    assert (spoilt[:, 3] == -100).all()
    assert set(np.unique(spoilt[:, :3])) <= {0, 1, 2}
    with pytest.raises(DataError, match="needs one class label per row"):
        federate(data, DataSettings(clients=2, partition={"name": "dirichlet"}), seed=0)
    with pytest.raises(DataError, match="classes 0, 1, … at each position"):
        from_arrays(ids, labels - 1, tokens=True)


# owners


def test_an_owner_alone_means_one_client_each_and_all_of_them():
    result = winnow.run(data=pd.DataFrame(patients()), targets="outcome", owner="hospital", rounds=1)
    assert result.client_names[:] == ["A", "B"]
    assert (result.experiment.data.partition.name, result.experiment.data.clients) == ("natural", 0)
    assert result.classes == ("ill", "well")
    assert (
        len(result.preprocessing.decode(result.model(torch.tensor(result.preprocessing.transform(patients()))))) == ROWS
    )
    limited = winnow.run(data=patients(), targets="outcome", owner="hospital", clients=1, rounds=1)
    assert limited.client_names[:] in (["A"], ["B"])
    spread = winnow.run(data=patients(), targets="outcome", owner="hospital", partition="iid", clients=3, rounds=1)
    assert spread.client_names[:] == ["client 0", "client 1", "client 2"]


def test_owners_of_arrays_are_clients_too():
    data = winnow.data.from_arrays(np.eye(40), [0, 1] * 20, owners=[7] * 20 + [9] * 20)
    assert winnow.run(data=data, rounds=1).client_names[:] == ["owner 7", "owner 9"]


def test_an_owner_in_a_configuration_means_the_same():
    settings = DataSettings(name="x", path="x.csv", targets="y", owner="ward")
    assert (settings.partition.name, settings.clients) == ("natural", 0)
    settings = DataSettings(name="x", path="x.csv", targets="y", owner="ward", partition="iid", clients=4)
    assert (settings.partition.name, settings.clients) == ("iid", 4)


@pytest.mark.parametrize(
    ("in_file", "beside", "partition", "clients"),
    [
        ({}, {}, "iid", 50),
        ({"owner": "hospital"}, {}, "natural", 0),
        ({"owner": "hospital", "clients": 2}, {}, "natural", 2),
        ({"owner": "hospital"}, {"partition": "iid"}, "iid", 50),
        ({"clients": 2}, {"owner": "hospital"}, "natural", 2),
        ({"partition": "iid", "clients": 3}, {"owner": "hospital"}, "iid", 3),
        (None, {}, "iid", 20),
        (None, {"owner": "hospital"}, "natural", 0),
        (None, {"owner": "hospital", "clients": 2}, "natural", 2),
        (None, {"owner": "hospital", "partition": "dirichlet"}, "dirichlet", 20),
    ],
)
def test_whose_clients_are_is_one_rule_in_files_on_the_command_line_and_in_python(
    in_file, beside, partition, clients, tmp_path
):
    """`in_file` is a configuration's [data], None without one; `beside` is what --set or Python adds."""
    path = tmp_path / "own.csv"
    pd.DataFrame(patients()).to_csv(path, index=False)
    own = {"path": str(path), "targets": "outcome"}
    config = None if in_file is None else {**MODEL, "data": {**own, **in_file}}
    sets = [f"data.{key}={value}" for key, value in {"targets": "outcome", **beside}.items()]
    ways = [resolve(config or path, sets=sets).data]
    if clients != 50:  # more than there are rows
        ways.append(winnow.run(config, data=path, targets="outcome", **beside, rounds=1).experiment.data)
        ways.append(winnow.run(config, data={**own, **beside}, rounds=1).experiment.data)
    assert {(way.partition.name, way.clients) for way in ways} == {(partition, clients)}


@pytest.mark.parametrize(
    ("config", "beside", "partition", "clients"),
    [
        (None, {}, "natural", 0),
        (None, {"clients": 1}, "natural", 1),
        (None, {"partition": "dirichlet"}, "dirichlet", 20),
        ({**MODEL, "data": {"partition": "iid", "clients": 3}}, {}, "iid", 3),
        ({**MODEL, "data": {"clients": 2}}, {}, "natural", 2),
    ],
)
def test_owners_of_a_data_set_follow_the_same_rule(config, beside, partition, clients):
    data = winnow.data.from_arrays(np.tile(np.eye(20), (20, 1)), [0, 1] * 200, owners=[7] * 200 + [9] * 200)
    settings = winnow.run(config, data=data, **beside, rounds=1).experiment.data
    assert (settings.partition.name, settings.clients) == (partition, clients)


# columns or settings


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, torch.tensor])
def test_columns_may_be_called_like_settings(kind):
    columns = {"features": kind([0.5, 1.5] * 20), "reference": kind([3, 4] * 20), "targets": kind([0, 1] * 20)}
    result = winnow.run(data=columns, targets="targets", clients=2, rounds=1)
    assert result.preprocessing.features == ("features", "reference")


def test_lists_of_names_are_settings(tmp_path):
    pd.DataFrame(patients()).to_csv(tmp_path / "own.csv", index=False)
    config = {**MODEL, "data": {"path": str(tmp_path / "own.csv"), "clients": 2}}
    result = winnow.run(config, data={"targets": ["outcome"], "features": ["dose"]}, rounds=1)
    assert result.preprocessing.features == ("dose",)
    for wrong in ({"target": "outcome"}, {"targets": ["outcome"], "partition": {"name": "ii"}}):
        with pytest.raises(winnow.WinnowError, match="did you mean") as caught:
            winnow.run(config, data=wrong)
        assert "\n" not in str(caught.value)


# a preprocessing that is stated


def test_a_stated_preprocessing_is_used_as_it_is():
    first = from_frame(patients(0), targets="outcome", owner="hospital")
    other = patients(1)
    result = winnow.run(data=other, targets="outcome", owner="hospital", preprocessing=first.preprocessing, rounds=1)
    assert result.preprocessing == first.preprocessing
    with pytest.raises(winnow.WinnowError, match="scale has no effect beside a stated preprocessing"):
        winnow.run(data=other, targets="outcome", preprocessing=first.preprocessing, scale="none")
    other["outcome"][0] = "dead"
    with pytest.raises(DataError, match="there is a class 'dead', which is not among the classes ill, well"):
        winnow.run(data=other, targets="outcome", preprocessing=first.preprocessing, rounds=1)


def test_a_stated_preprocessing_goes_into_the_run_folder_and_back(tmp_path):
    columns = patients()
    given = from_frame(columns, targets="outcome", owner="hospital").preprocessing
    settings = {
        "data": columns,
        "targets": "outcome",
        "owner": "hospital",
        "preprocessing": given,
        "out": tmp_path / "r",
    }
    first = winnow.run(**settings, rounds=1)
    begun = first.history
    again = winnow.run(**settings, rounds=2, resume=True)
    assert again.experiment.data.preprocessing == first.experiment.data.preprocessing == given
    assert again.history[: len(begun)] == begun


# JSON, whoever wrote it

NAMES = st.text(max_size=8)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=1e-30, allow_infinity=False)
COLUMNS = st.one_of(
    st.builds(Column, name=NAMES, fill=FINITE, marks_missing=st.booleans(), shift=FINITE, width=POSITIVE),
    st.builds(
        Column, name=NAMES, kind=st.just("category"), categories=st.lists(NAMES, unique=True, max_size=5).map(tuple)
    ),
)
LABELS = st.one_of(st.integers(), NAMES, st.booleans(), FINITE)
PREPROCESSINGS = st.one_of(
    st.builds(
        Preprocessing,
        columns=st.lists(COLUMNS, unique_by=lambda column: column.name, max_size=4).map(tuple),
        classes=st.none() | st.lists(LABELS, unique_by=repr, max_size=5).map(tuple),
    ),
    st.builds(
        Preprocessing,
        inputs=st.lists(
            st.builds(InputSpec, name=NAMES, shape=st.just((2, 3)), kind=st.sampled_from(["number", "token"])),
            unique_by=lambda spec: spec.name,
            max_size=3,
        ).map(tuple),
        targets=st.lists(st.builds(TargetSpec, name=NAMES, shift=FINITE, width=POSITIVE), max_size=3).map(tuple),
    ),
)


@given(PREPROCESSINGS)
def test_json_and_back(pre):
    again = Preprocessing.from_json(json.loads(json.dumps(pre.to_json())))
    assert again == pre
    assert [type(label) for label in again.classes or ()] == [type(label) for label in pre.classes or ()]


GOOD = from_frame(patients(), targets="outcome", owner="hospital").preprocessing.to_json()
ARRAY = from_arrays(np.arange(12.0).reshape(4, 3), [0, 1, 0, 1]).preprocessing.to_json()


def changed(table, *path, value):
    copy = json.loads(json.dumps(table))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    "table",
    [
        [],
        {"rows": 1},
        changed(GOOD, "columns", 0, "width", value=0),
        changed(GOOD, "columns", 0, "width", value=float("nan")),
        changed(GOOD, "columns", 0, "fill", value=float("inf")),
        changed(GOOD, "columns", 0, "fill", value="1"),
        changed(GOOD, "columns", 0, "kind", value="code"),
        changed(GOOD, "columns", 0, "name", value="x" * 20_000),
        changed(GOOD, "columns", 1, "name", value="age"),
        changed(GOOD, "columns", 2, "categories", value=["a", "a"]),
        changed(GOOD, "columns", 2, "categories", value=[str(each) for each in range(1000)]),
        changed(GOOD, "columns", value={"0": {}}),
        changed(GOOD, "classes", value=["a", "a"]),
        changed(GOOD, "classes", value=[["a"]]),
        changed(GOOD, "classes", value=[None]),
        changed(GOOD, "array", value={"shape": [3]}),
        changed(GOOD, "targets", value=[{"width": 1.0}]),
        changed(ARRAY, "array", "shape", value=[1 << 20, 1 << 20]),
        changed(ARRAY, "array", "shape", value=[-3]),
        changed(ARRAY, "array", "shape", value=[4]),
        changed(ARRAY, "array", "kind", value="token"),
        changed(ARRAY, "array", "scaling", "shift", value=[0.0]),
        changed(ARRAY, "array", "scaling", "more", value=1),
    ],
)
def test_json_of_a_liar_is_refused_in_one_line(table):
    with pytest.raises(DataError, match="not a preprocessing that Winnow saved") as caught:
        Preprocessing.from_json(table)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda e: st.lists(e) | st.dictionaries(st.text(), e),
    )
)
def test_any_json_gives_a_preprocessing_or_one_line(table):
    try:
        said = repr(Preprocessing.from_json(table))
    except DataError as error:
        said = str(error)
    assert "\n" not in said
