"""The user's own data: what is read, how it is understood, and what a mistake says."""

import builtins
import gzip
import io
import re
import time
import warnings
import zipfile
from datetime import date

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils.data import TensorDataset

from winnow.core import DataError
from winnow.data import DataSettings, federate, from_arrays, from_torch, load

HEADER = "age,city,height,label\n"
ROWS = "31,Bonn,1.5,yes\n47,Ulm,1.75,no\n52,Bonn,2.0,yes\n"


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content, encoding="utf-8")
    return path


def refusal(**settings) -> str:
    """The message, which must be a single line."""
    with pytest.raises(DataError) as caught:
        load(DataSettings(**settings))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_csv_classes_are_numbered_in_sorted_order_and_owners_are_kept_apart(tmp_path):
    path = write(tmp_path, "people.csv", HEADER + ROWS)
    data = load(DataSettings(path=path, targets=("label",), owner="city", scale="none"))
    assert data.name == "people"
    assert data.x.tolist() == [[31, 1.5], [47, 1.75], [52, 2.0]]
    assert (data.y.tolist(), data.classes) == ([1, 0, 1], 2)
    assert data.owners.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("targets", "task", "classes", "y"),
    [
        (("label",), "auto", 2, [1, 0, 1]),
        (("age",), "auto", 3, [0, 1, 2]),
        (("age",), "regression", None, [[31], [47], [52]]),
        (("height",), "auto", None, [[1.5], [1.75], [2]]),
        (("height",), "classification", 3, [0, 1, 2]),
        (("age", "height"), "auto", None, [[31, 1.5], [47, 1.75], [52, 2]]),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_task_follows_from_the_targets_unless_it_is_named(tmp_path, kind, targets, task, classes, y):
    if kind == "csv":
        path = write(
            tmp_path, "people.csv", HEADER.replace("city", "weight") + ROWS.replace("Bonn", "7").replace("Ulm", "8")
        )
    else:
        path = parquet(
            tmp_path, age=[31, 47, 52], weight=[7, 8, 7], height=[1.5, 1.75, 2.0], label=["yes", "no", "yes"]
        )
    data = load(DataSettings(path=path, targets=targets, features=("weight",), task=task, scale="none"))
    assert (data.classes, data.y.tolist(), data.x.tolist()) == (classes, y, [[7], [8], [7]])


def parquet(folder, **columns):
    import pyarrow as arrow
    import pyarrow.parquet

    arrow.parquet.write_table(arrow.table(columns), folder / "people.parquet")
    return folder / "people.parquet"


def test_tables_are_standardised_unless_told_otherwise(tmp_path):
    path = write(tmp_path, "t.csv", "a,b,y\n1,7,10.5\n3,7,20.5\n2,7,12.5\n")
    settings = DataSettings(path=path, targets=("y",))
    assert np.allclose(load(settings).x, [[-np.sqrt(1.5), 0], [np.sqrt(1.5), 0], [0, 0]], atol=1e-6)
    unit = load(settings.model_copy(update={"scale": "minmax"}))
    assert unit.x.tolist() == [[0, 0], [1, 0], [0.5, 0]]
    assert np.allclose(unit.y, [[0], [1], [0.2]])


def test_one_target_needs_no_list(tmp_path):
    path = write(tmp_path, "t.csv", "a,b,y\n1,7,10.5\n3,7,20.5\n2,7,12.5\n")
    assert DataSettings(path=path, targets="y", partition="iid") == DataSettings(path=path, targets=("y",))


def test_quotes_spaces_blank_lines_and_byte_order_marks_are_understood(tmp_path):
    content = '\ufeffa , "b",y\n"1",2,"x, left"\n\n 3 ,4,"right"\n'
    data = load(DataSettings(path=write(tmp_path, "t.csv", content), targets=("y",), scale="none"))
    assert data.x.tolist() == [[1, 2], [3, 4]]
    assert data.classes == 2


def test_quotes_may_span_lines_and_empty_lines_may_hold_spaces(tmp_path):
    content = 'a,b,y\n1,2,"left\nor, right"\n  \n3,4,right\n'
    data = load(DataSettings(path=write(tmp_path, "t.csv", content), targets=("y",), scale="none"))
    assert data.x.tolist() == [[1, 2], [3, 4]]


def test_a_gzipped_csv_is_a_csv(tmp_path):
    path = write(tmp_path, "people.csv.gz", gzip.compress((HEADER + ROWS).encode()))
    data = load(DataSettings(path=path, targets=("label",), owner="city", scale="none"))
    assert (data.name, data.x.tolist(), data.y.tolist()) == ("people", [[31, 1.5], [47, 1.75], [52, 2.0]], [1, 0, 1])


def test_data_are_called_after_their_file_unless_named(tmp_path):
    path = tmp_path / "Patients 2024.csv.gz"
    assert DataSettings(path=path).name == "Patients 2024"
    assert DataSettings.model_validate({"path": str(path), "name": "mine"}).name == "mine"
    assert DataSettings().name == "digits"
    again = DataSettings.model_validate(DataSettings(path=path).model_dump(exclude_none=True))
    assert again == DataSettings(path=path)


def test_a_large_csv_is_read_in_a_second_or_so(tmp_path):
    table = np.random.default_rng(0).random((36_000, 11))
    path = tmp_path / "large.csv"
    np.savetxt(path, table, delimiter=",", fmt="%.6f", header=",".join("abcdefghijk"), comments="")
    begin = time.process_time()
    data = load(DataSettings(path=path, targets=("k",), scale="none"))
    assert time.process_time() - begin < 3.0
    assert np.allclose(data.x, table[:, :10], atol=1e-6)


@pytest.mark.parametrize(
    ("content", "targets", "expected"),
    [
        ("", ("y",), "is empty"),
        ("a,y\n", ("y",), "a header but no rows"),
        (HEADER + ROWS, ("lable",), "no column 'lable' (named as a target); did you mean 'label'?"),
        (HEADER + ROWS, (), "data.targets"),
        (HEADER + ROWS, ("age", "label"), "column 'label', data row 1 holds 'yes'"),
        ("a,y\n1,u\n3o,u\n2,v\n", ("y",), "column 'a', data row 2 holds '3o', and other rows hold numbers"),
        ("a,y\n1,2\ninf,4\n", ("y",), "column 'a', data row 2 is inf"),
        ("a,b,y\n,1,2\nNA,1,4\n", ("y",), "every value of column 'a' is missing"),
        ("a,y\n1,2.5\n2,\n", ("y",), "column 'y', data row 2 is empty"),
        ("a,y\n1,2\n3\n", ("y",), "data row 2 has 1 cell but the header has 2"),
        ("a,b,y\n1,2,u\n9,0.1,0.2,u\n", ("y",), "data row 2 has 4 cells but the header has 3"),
        ('a,b,y\n1,2,"u, v"\n9,0.1,0.2,"u"\n', ("y",), "data row 2 has 4 cells but the header has 3"),
        ('a,b,y\n1,2,"u, v"\n9,"u"\n', ("y",), "data row 2 has 2 cells but the header has 3"),
        ("a,a,y\n1,2,3\n", ("y",), "more than one column 'a'"),
        ('"a\nb",y\nu,v\nw,x\n', ("y",), "a column's name contains a line break"),
        ("y\n1\n", ("y",), "no columns remain for features"),
        (b"a,y\n\xff\xfe,1\n", ("y",), "not UTF-8"),
        ("a;y\n1;2\n", ("y",), "the columns seem to be separated by ';'; save it with commas"),
        ('"a";"y"\n1,5;2\n', ("y",), "the columns seem to be separated by ';'; save it with commas"),
        ("a\ty\n1\t2\n", ("y",), "the columns seem to be separated by tabs; save it with commas"),
        ("a,y\n1e300,1\n-1e300,2\n", ("y",), "column 'a', data row 1 is 1e+300, too large to scale; correct it"),
        ("a,y\n1,1\n1e308,2\n", ("y",), "column 'a', data row 2 is 1e+308, too large to scale; correct it"),
        ("a,y\n1,0.5\n2,1e200\n", ("y",), "target 'y', data row 2 is 1e+200, too large to scale; correct it"),
    ],
)
def test_mistakes_in_a_csv_are_named_with_their_place(tmp_path, content, targets, expected):
    path = write(tmp_path, "people.csv", content)
    message = refusal(path=path, targets=targets)
    assert expected in message
    assert str(path) in message


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_text_is_one_hot_and_missing_numbers_are_filled_and_marked(tmp_path, kind):
    if kind == "csv":
        path = write(tmp_path, "t.csv", "age,city,label\n31,Ulm,yes\n ,Bonn,no\n52,NA,yes\n33, Bonn ,no\n")
    else:
        path = parquet(
            tmp_path, age=[31, None, 52, 33], city=["Ulm", "Bonn", None, "Bonn"], label=["yes", "no", "yes", "no"]
        )
    data = load(DataSettings(path=path, targets="label", scale="none"))
    assert data.preprocessing.features == ("age", "age is missing", "city = Bonn", "city = Ulm", "city = other")
    assert data.x.tolist() == [[31, 0, 0, 1, 0], [33, 1, 1, 0, 0], [52, 0, 0, 0, 1], [33, 0, 1, 0, 0]]
    assert data.preprocessing.classes == ("no", "yes")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"a": [1, 2], "day": [date(2020, 1, 1)] * 2}, "column 'day' holds dates or times"),
        ({"a": [1.0, np.inf]}, "column 'a', data row 2 is inf"),
        ({"a": []}, "has no rows"),
    ],
)
def test_mistakes_in_a_parquet_file_are_named_with_their_place(tmp_path, columns, expected):
    rows = len(columns["a"])
    assert expected in refusal(path=parquet(tmp_path, **columns, y=list(range(rows))), targets=("y",))


def test_a_damaged_parquet_file_is_refused(tmp_path):
    assert "not a readable Parquet file" in refusal(path=write(tmp_path, "t.parquet", b"PAR1"), targets=("y",))


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path, "t.parquet", b"")
    honest = builtins.__import__

    def without_pyarrow(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return honest(name, *args, **kwargs)

    monkeypatch.delitem(__import__("sys").modules, "winnow.data.parquet", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    assert re.search(r"need pyarrow: pip install .*\[parquet\]", refusal(path=path, targets=("y",)))


def test_labels_and_owners_of_a_csv_file_may_be_called_none_or_na(tmp_path):
    rows = "age,city,label\n31,NA,None\n47,Ulm,mild\n52,NA,null\n60,null,mild\n"
    data = load(DataSettings(path=write(tmp_path, "t.csv", rows), targets="label", owner="city", scale="none"))
    assert data.preprocessing.classes == ("None", "mild", "null")
    assert (data.owner_names, data.owners.tolist()) == (("NA", "Ulm", "null"), [0, 1, 0, 2])
    both = write(tmp_path, "both.csv", "age,label\n31,None\n47,NA\n52,None\n")
    assert load(DataSettings(path=both, targets="label")).preprocessing.classes == ("NA", "None")
    for name, cells in (("empty.csv", "no\n47,\n52,None\n"), ("number.csv", "1\n47,NA\n52,0\n")):
        path = write(tmp_path, name, f"age,label\n31,{cells}")
        assert load(DataSettings(path=path, targets="label")).y.tolist() == [1, -1, 0], "an empty cell is no label"


def test_npz_is_read_with_its_owners(tmp_path):
    path = tmp_path / "own.npz"
    x = np.random.default_rng(0).normal(size=(4, 1, 5, 5))
    np.savez(path, x=x, y=np.array([30, 10, 20, 10]), owners=np.array([4, 4, -1, 9]))
    data = load(DataSettings(path=path))
    assert np.array_equal(data.x, x.astype(np.float32))
    assert (data.y.tolist(), data.classes, data.owners.tolist()) == ([2, 0, 1, 0], 3, [0, 0, -1, 1])
    assert load(DataSettings(path=path, task="regression")).classes is None


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"x": np.ones((3, 2))}, "no array 'y'; it holds x"),
        (
            {"x": np.ones((3, 2)), "y": np.arange(3), "owner": np.arange(3)},
            "own.npz holds an array 'owner', which would be ignored; did you mean 'owners'? Winnow knows x, y, owners, "
            "keys; rename the array, or leave it out",
        ),
        (
            {"x": np.ones((3, 2)), "y": np.arange(3), "note": np.array([{}], dtype=object)},
            "own.npz holds an array 'note', which would be ignored; Winnow knows x, y, owners, keys; rename",
        ),
        ({"x": np.ones((3, 2)), "y": np.ones(2, dtype=int)}, "x has 3 rows but y has 2"),
        ({"x": np.ones((3, 2)), "y": np.arange(3), "owners": np.arange(4)}, "owners has 4"),
        ({"x": np.array([[1.0, np.nan]]), "y": np.arange(1)}, "x[0, 1] is not a finite number"),
        ({"x": np.array([["a"]]), "y": np.arange(1)}, "x must hold numbers"),
        ({"x": np.array([[{}]], dtype=object), "y": np.arange(1)}, "not a readable .npz of plain arrays"),
        ({"x": np.ones(3), "y": np.arange(3)}, "at least two dimensions"),
        ({"x": np.ones((0, 3)), "y": np.ones(0)}, "no rows"),
    ],
)
def test_mistakes_in_an_npz_are_named(tmp_path, arrays, expected):
    np.savez(tmp_path / "own.npz", **arrays)
    assert expected in refusal(path=tmp_path / "own.npz", scale="none")


def npy_bytes(array):
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


X, Y = npy_bytes(np.zeros((4, 2), np.float32)), npy_bytes(np.array([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (
            [("x.npy", X), ("x", b"raw"), ("y.npy", Y)],
            "own.npz holds 'x', which is no array; write the file with",
        ),
        ([("x.npy", X), ("y.npy", Y), ("y.npy", Y)], "own.npz holds 'y.npy' twice; write the file with numpy.savez"),
        ([("x.npy", X), ("y.npy", Y), ("a\x1b[31m\nb.npy", Y)], "own.npz holds an array 'a?[31m b', which would be"),
        ([("x.npy", X), ("y.npy", Y), ("o" * 5_000 + ".npy", Y)], f"own.npz holds an array '{'o' * 40}', which would"),
        ([("x.npy", X), *((f"z{number}.npy", Y) for number in range(3_000))], "it holds x, z0, z1, z10, z100, z1000"),
    ],
)
def test_an_npz_by_somebody_else_is_refused_in_a_short_line(tmp_path, members, expected):
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    line = refusal(path=tmp_path / "own.npz", scale="none")
    assert expected in line
    assert len(line) < 400 + len(str(tmp_path))


def test_an_encrypted_npz_is_refused(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.zeros((4, 2)), y=np.array([0, 1, 0, 1]))
    content = bytearray((tmp_path / "own.npz").read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # of a member, where it is and in the list of all
        content[content.index(mark) + flags] |= 1
    (tmp_path / "own.npz").write_bytes(content)
    line = refusal(path=tmp_path / "own.npz", scale="none")
    assert "own.npz is not a readable .npz of plain arrays: " in line
    assert "encrypted" in line


@pytest.mark.parametrize("damage", ["bytes", "header", "type"])
def test_a_damaged_npz_is_refused(tmp_path, damage):
    header = {"bytes": X[10:], "header": b"{'descr': (", "type": X[10:].replace(b"<f4", b"<,,")}[damage]
    size = len(header).to_bytes(2, "little") if damage == "header" else X[8:10]
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", X[:8] + size + header)
        archive.writestr("y.npy", Y)
    if damage == "bytes":
        content = bytearray((tmp_path / "own.npz").read_bytes())
        content[40:60] = bytes(255 - each for each in content[40:60])
        (tmp_path / "own.npz").write_bytes(content)
    assert "own.npz is not a readable .npz of plain arrays: " in refusal(path=tmp_path / "own.npz", scale="none")


def test_an_npz_that_claims_more_than_fits_into_memory_is_refused(tmp_path):
    claimed = io.BytesIO()
    np.lib.format.write_array_header_1_0(claimed, {"descr": "<f4", "fortran_order": False, "shape": (10**13, 2)})
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        archive.writestr("x.npy", claimed.getvalue())
        archive.writestr("y.npy", Y)
    assert refusal(path=tmp_path / "own.npz", scale="none").endswith("own.npz has arrays that do not fit into memory")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gone.csv", "there is no file"),
        ("data.xlsx", "use .npz, .csv, .csv.gz or .parquet"),
        ("own.npz", "not a readable .npz"),
        ("own.csv.gz", "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, name, expected):
    write(tmp_path, "data.xlsx", b"PK")
    write(tmp_path, "own.npz", b"not a zip")
    write(tmp_path, "own.csv.gz", gzip.compress((HEADER + ROWS).encode())[:-4])
    assert expected in refusal(path=tmp_path / name, targets=() if name == "own.npz" else ("y",))


def test_arrays_keep_labels_that_are_already_numbers_of_classes():
    assert from_arrays([[1.0], [2.0]], [0, 3], classes=5).classes == 5
    assert from_arrays([[1.0], [2.0]], [0, 3], classes=5).y.tolist() == [0, 3]
    assert from_arrays([[1.0], [2.0]], ["b", "a"]).y.tolist() == [1, 0]
    with pytest.raises(DataError, match="whole numbers from 0 to 2"):
        from_arrays([[1.0], [2.0]], [0, 3], classes=3)
    with pytest.raises(DataError, match="whole numbers from 0 to 2"):
        from_arrays([[1.0], [2.0]], [0.5, 1], classes=3)


def test_a_torch_data_set_becomes_arrays():
    x, y = torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    data = from_torch(TensorDataset(x, y))
    assert np.array_equal(data.x, x.numpy())
    assert (data.y.tolist(), data.classes) == (y.tolist(), 3)
    assert from_torch(TensorDataset(x, torch.rand(6, 2))).y.shape == (6, 2)


class Uneven:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.zeros(index + 1), 0


@pytest.mark.parametrize(("dataset", "expected"), [(Uneven(), "all of one shape"), (iter([]), "map-style")])
def test_torch_data_sets_that_do_not_fit_are_refused(dataset, expected):
    with pytest.raises(DataError, match=expected):
        from_torch(dataset)


def test_own_data_can_be_federated(tmp_path):
    rows = "".join(f"{i},{i % 7},{'even' if i % 2 == 0 else 'odd'}\n" for i in range(200))
    settings = DataSettings(path=write(tmp_path, "t.csv", "a,b,y\n" + rows), targets=("y",), clients=4)
    federated = federate(load(settings), settings, 0)
    assert (len(federated.clients), len(federated.reference), len(federated.test)) == (4, 20, 20)
    assert federated.clients.sizes.sum() == 160


def prices(rows, distinct):
    return np.arange(rows)[:, None] + 0.5, 1000 * (np.arange(rows) % distinct)


@pytest.mark.parametrize(("rows", "distinct"), [(5000, 101), (300, 31), (20, 11)])
def test_many_whole_numbers_are_not_taken_for_classes_without_a_word(tmp_path, rows, distinct):
    x, y = prices(rows, distinct)
    np.savez(tmp_path / "own.npz", x=x, y=y)
    message = refusal(path=tmp_path / "own.npz")
    assert f"{distinct} distinct values in {rows} rows" in message
    assert 'data.task = "classification" or "regression"' in message
    assert load(DataSettings(path=tmp_path / "own.npz", task="classification")).classes == distinct
    regression = load(DataSettings(path=tmp_path / "own.npz", task="regression", scale="none"))
    assert (regression.classes, regression.y[:, 0].tolist()) == (None, y.tolist())


@pytest.mark.parametrize(("rows", "distinct"), [(1000, 100), (310, 31), (10, 10), (3, 2)])
def test_few_whole_numbers_are_classes(rows, distinct):
    assert from_arrays(*prices(rows, distinct)).classes == distinct


def test_text_is_always_classes():
    x, y = prices(400, 200)
    assert from_arrays(x, y.astype(str)).classes == 200


def test_arrays_follow_task_and_scale():
    x, y = np.array([[0.0, 5.0], [10.0, 5.0], [5.0, 5.0]]), np.array([3, 7, 5])
    plain = from_arrays(x, y, scale="none")
    assert (plain.x.tolist(), plain.y.tolist(), plain.classes) == (x.tolist(), [0, 2, 1], 3)
    scaled = from_arrays(x, y, task="regression", scale="minmax")
    assert scaled.x.tolist() == [[0, 0], [1, 0], [0.5, 0]]
    assert (scaled.y.tolist(), scaled.classes) == ([[0], [1], [0.5]], None)
    labels = from_arrays(x, np.array([10.0, 2.0, 10.0]), task="classification")
    assert (labels.y.tolist(), labels.classes) == ([1, 0, 1], 2)
    dataset = TensorDataset(torch.tensor(x), torch.tensor(y))
    assert from_torch(dataset, task="regression", scale="minmax").y.tolist() == scaled.y.tolist()


TOKENS = np.array([[1, 19], [0, 2**40], [7, 7]])


@pytest.mark.parametrize("kind", ["npz", "csv", "parquet", "arrays"])
def test_tokens_stay_whole_numbers(tmp_path, kind):
    y = ["a", "b", "a"]
    if kind == "npz":
        np.savez(tmp_path / "own.npz", x=TOKENS, y=y)
        data = load(DataSettings(path=tmp_path / "own.npz", tokens=True))
    elif kind == "arrays":
        data = from_arrays(TOKENS, y, tokens=True)
    else:
        rows = "".join(f"{a},{b},{label}\n" for (a, b), label in zip(TOKENS, y, strict=True))
        csv = write(tmp_path, "own.csv", "first,second,y\n" + rows)
        path = csv if kind == "csv" else parquet(tmp_path, first=TOKENS[:, 0], second=TOKENS[:, 1], y=y)
        data = load(DataSettings(path=path, targets=("y",), tokens=True))
    assert data.x.dtype == np.int64
    assert np.array_equal(data.x, TOKENS)


@pytest.mark.parametrize("x", [[[0.5, 1]], [[-1, 1]]])
def test_tokens_that_are_no_identifiers_are_refused(x):
    with pytest.raises(DataError, match="tokens must be whole numbers, 0 or greater"):
        from_arrays(x, [0], tokens=True)


def test_tokens_cannot_be_scaled():
    with pytest.raises(DataError, match="cannot be scaled"):
        from_arrays(TOKENS, [0, 1, 0], tokens=True, scale="standard")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "digits", "task": "regression"}, "data.task has no effect on the known set 'digits'"),
        ({"name": "digits", "targets": ("y",)}, "data.targets has no effect on the known set 'digits'"),
        ({"name": "digits", "owner": "writer"}, "data.owner has no effect"),
        ({"name": "digits", "tokens": True}, "data.tokens has no effect"),
        ({"path": "own.npz", "features": ("a",)}, "data.features has no effect on an .npz file"),
    ],
)
def test_settings_without_effect_are_refused(tmp_path, monkeypatch, settings, expected):
    monkeypatch.chdir(tmp_path)
    np.savez("own.npz", x=np.ones((3, 2)), y=[0, 1, 0])
    assert expected in refusal(**settings)


@pytest.mark.parametrize("amount", [1.0, 0.0, -1, 1.5, True, "all"])
def test_an_amount_is_rows_or_a_share(amount):
    with pytest.raises(ValidationError) as refused:
        DataSettings(reference=amount)
    assert f"{amount!r} is neither a number of rows such as 500 nor a share between 0 and 1" in str(refused.value)
    assert refused.value.error_count() == 1
