"""Known sets: official formats, scaling, held-out rows, and where files are looked for."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.datasets import load_digits

from support.needs import DATA
from winnow.core import DataError
from winnow.data import DataSettings, catalogue, data_directories, federate, from_arrays, load

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _no_other_folders(monkeypatch, tmp_path):
    monkeypatch.delenv("WINNOW_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def real(data_directory):
    """A function that gives the data directory, or skips where it lacks a set."""

    def directory(name):
        if not next(each for each in catalogue(data_directory) if each.name == name).present:
            DATA.skip(f"{name} is not in {data_directory}")
        return data_directory

    return directory


def idx(values: np.ndarray) -> bytes:
    code = {"uint8": 0x08, "int32": 0x0C}[values.dtype.name]
    return (
        struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape)
        + values.astype(values.dtype.newbyteorder(">")).tobytes()
    )


def write_idx_set(folder, train, test, *, zipped, rows=(30, 10)):
    folder.mkdir(parents=True)
    held = {}
    for split, count in zip((train, test), rows, strict=True):
        images = RNG.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        labels = RNG.integers(0, 10, count).astype(np.uint8)
        for part, values in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{split}-{part}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(idx(values)) if zipped else idx(values))
        held[split] = images, labels
    return held


def test_digits_come_without_files_as_images_in_the_unit_range():
    data = load(DataSettings())
    assert (data.x.shape, data.x.dtype, data.classes) == ((1797, 1, 8, 8), np.float32, 10)
    assert np.allclose(data.x[:, 0], load_digits().images / 16)
    assert np.array_equal(data.y, load_digits().target)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
def test_mnist_is_read_from_idx_files_plain_or_zipped_directly_or_in_its_folder(tmp_path, zipped, folder):
    held = write_idx_set(tmp_path / "data" / folder, "train", "t10k", zipped=zipped)
    data = load(DataSettings(name="mnist"), tmp_path / "data")
    images, labels = (np.concatenate([held["train"][part], held["t10k"][part]]) for part in (0, 1))
    assert np.allclose(data.x[:, 0], (images / 255 - 0.1307) / 0.3081, atol=1e-5)
    assert np.array_equal(data.y, labels)
    assert data.test_rows.tolist() == list(range(30, 40))
    assert data.owners is None


def test_writers_of_mnist_own_their_training_rows(tmp_path):
    write_idx_set(tmp_path / "mnist", "train", "t10k", zipped=True)
    extended = RNG.integers(0, 5, (30, 8)).astype(np.int32)
    (tmp_path / "mnist" / "qmnist-train-labels-idx2-int.gz").write_bytes(gzip.compress(idx(extended)))
    owners = load(DataSettings(name="mnist"), tmp_path).owners
    assert owners.tolist() == [*extended[:, 2], *[-1] * 10]


def test_emnist_images_are_turned_upright(tmp_path):
    held = write_idx_set(tmp_path / "emnist", "emnist-digits-train", "emnist-digits-test", zipped=True)
    data = load(DataSettings(name="emnist-digits", scale="none"), tmp_path)
    assert np.array_equal(data.x[3, 0], held["emnist-digits-train"][0][3].T)
    assert data.test_rows.tolist() == list(range(30, 40))


def write_cifar(folder, *, binary, protocol=4):
    folder.mkdir(parents=True)
    parts = [(RNG.integers(0, 256, (4, 3072)).astype(np.uint8), RNG.integers(0, 10, 4)) for _ in range(6)]
    names = [*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"]
    for name, (pixels, labels) in zip(names, parts, strict=True):
        if binary:
            (folder / f"{name}.bin").write_bytes(np.column_stack([labels, pixels]).astype(np.uint8).tobytes())
        else:
            batch = {b"labels": labels.tolist(), b"data": pixels, b"batch_label": b"part"}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


@pytest.mark.parametrize(("binary", "protocol"), [(True, 4), (False, 2), (False, 4), (False, 5)])
def test_cifar_is_read_in_both_official_layouts(tmp_path, binary, protocol):
    folder = tmp_path / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    pixels, labels = write_cifar(folder, binary=binary, protocol=protocol)
    data = load(DataSettings(name="cifar10", scale="none"), tmp_path)
    assert np.array_equal(data.x.reshape(24, 3072), pixels)
    assert np.array_equal(data.y, labels)
    assert data.test_rows.tolist() == [20, 21, 22, 23]
    scaled = load(DataSettings(name="cifar10"), tmp_path)
    assert np.allclose(scaled.x[:, 1], (data.x[:, 1] / 255 - 0.4822) / 0.2435, atol=1e-5)


class Malice:
    def __reduce__(self):
        return eval, ("__import__('pathlib').Path('owned').touch()",)


def test_a_malicious_pickle_is_refused_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path / "cifar-10-batches-py", binary=False)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({b"data": Malice()}))
    with pytest.raises(DataError, match=r"data_batch_3 is not a plain CIFAR-10 batch: it refers to builtins\.eval"):
        load(DataSettings(name="cifar10"), tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("damage", [b"", b"\0\0", b"\0\0\x08\x01\0\0\0\x09abc", gzip.compress(b"xyz", mtime=0)[:-9]])
def test_damaged_files_are_named(tmp_path, damage):
    write_idx_set(tmp_path / "mnist", "train", "t10k", zipped=True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(
        damage if damage[:2] == b"\x1f\x8b" else gzip.compress(damage)
    )
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz .* download it again"):
        load(DataSettings(name="mnist"), tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data_batch_2.bin", b"\0" * 3072),
        ("data_batch_2", pickle.dumps({b"labels": [1, 2]})),
        ("data_batch_2", pickle.dumps([1, 2])),
        ("data_batch_2", pickle.dumps({b"labels": [1], b"data": np.zeros(5)})),
        ("data_batch_2", pickle.dumps({b"labels": [1]})[:-4]),
        ("data_batch_2", b""),
    ],
)
def test_damaged_cifar_files_are_named(tmp_path, name, content):
    binary = name.endswith(".bin")
    write_cifar(tmp_path / "cifar10", binary=binary)
    (tmp_path / "cifar10" / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} .* download it again"):
        load(DataSettings(name="cifar10"), tmp_path / "cifar10")


def test_boston_in_statlibs_layout_equals_the_csv(tmp_path):
    table = RNG.random((506, 14)).round(4)
    csv, statlib = tmp_path / "csv" / "boston", tmp_path / "statlib" / "boston"
    csv.mkdir(parents=True)
    statlib.mkdir(parents=True)
    lines = "\n".join(",".join(map(str, row)) for row in table)
    (csv / "boston_house_prices.csv").write_text("crim,zn\n" + lines)
    halves = "\n".join(f" {' '.join(map(str, row[:11]))}\n  {' '.join(map(str, row[11:]))}" for row in table)
    (statlib / "boston.txt").write_text(" The Boston data, 1978.\n CRIM per capita\n\n" + halves + "\n")
    first, second = (load(DataSettings(name="boston"), folder.parent) for folder in (csv, statlib))
    assert np.array_equal(first.x, second.x)
    assert np.allclose(first.y[:, 0], (table[:, 13] - table[:, 13].min()) / np.ptp(table[:, 13]), atol=1e-6)


def test_gas_turbine_is_normalised_in_every_column(real):
    data = load(DataSettings(name="gas-turbine"), real("gas-turbine"))
    assert (data.x.shape, data.y.shape, data.classes) == ((36_733, 9), (36_733, 2), None)
    for values in (data.x, data.y):
        assert np.allclose(values.min(axis=0), 0)
        assert np.allclose(values.max(axis=0), 1)
    raw = load(DataSettings(name="gas-turbine", scale="none"), real("gas-turbine"))
    assert (
        raw.x[0].tolist()
        == np.array([4.5878, 1018.7, 83.675, 3.5758, 23.979, 1086.2, 549.83, 134.67, 11.898], "f4").tolist()
    )
    assert raw.y[0].tolist() == np.array([0.32663, 81.952], "f4").tolist()


def test_the_real_mnist_has_its_published_statistics_and_writers(real):
    data = load(DataSettings(name="mnist"), real("mnist"))
    assert data.x.shape == (70_000, 1, 28, 28)
    assert abs(data.x[:60_000].mean()) < 1e-3
    assert abs(data.x[:60_000].std() - 1) < 1e-3
    assert np.bincount(data.y[:60_000])[:3].tolist() == [5923, 6742, 5958]
    assert len(np.unique(data.owners[:60_000])) == 539


def test_real_boston(real):
    raw = load(DataSettings(name="boston", scale="none"), real("boston"))
    assert raw.x.shape == (506, 13)
    assert abs(raw.y.mean() - 22.5328) < 1e-3


def test_folders_are_searched_in_order(monkeypatch, tmp_path):
    assert data_directories() == (tmp_path / "cache" / "winnow",)
    monkeypatch.setenv("WINNOW_DATA", str(tmp_path / "shared"))
    given = tmp_path / "given"
    assert data_directories(given) == (given, tmp_path / "shared", tmp_path / "cache" / "winnow")
    write_idx_set(tmp_path / "shared" / "mnist", "train", "t10k", zipped=True)
    assert next(each.where for each in catalogue(given) if each.name == "mnist") == tmp_path / "shared" / "mnist"
    write_idx_set(given, "train", "t10k", zipped=False)
    assert next(each.where for each in catalogue(given) if each.name == "mnist") == given


def test_the_catalogue_says_what_is_here(tmp_path):
    present = {each.name: each.present for each in catalogue(tmp_path)}
    assert list(present) == [
        "digits",
        "gas-turbine",
        "mnist",
        "emnist-digits",
        "cifar10",
        "boston",
        "sst2",
        "imdb",
        "sent140",
        "pacs",
        "movielens",
        "adult",
        "credit",
    ]
    assert [name for name, here in present.items() if here] == ["digits"]


def test_an_unknown_set_suggests_the_nearest():
    with pytest.raises(DataError, match="unknown data set 'minst'; did you mean 'mnist'"):
        load(DataSettings(name="minst"))


def labelled(rows, test_rows=None):
    data = from_arrays(np.arange(rows, dtype=np.float32)[:, None], np.arange(rows) % 2, scale="none")
    return data if test_rows is None else type(data)(**{**vars(data), "test_rows": np.asarray(test_rows)})


def numbers(examples) -> set[int]:
    return set(examples.x[:, 0].astype(int).tolist())


def test_held_out_rows_are_disjoint_and_the_rest_goes_to_clients():
    federated = federate(labelled(500), DataSettings(clients=5, reference=0.2, test=50), 0)
    reference, test, held = (numbers(each) for each in (federated.reference, federated.test, federated.clients))
    assert (len(reference), len(test), len(held)) == (100, 50, 350)
    assert reference | test | held == set(range(500))


@pytest.mark.parametrize(("reference", "from_official"), [(40, True), (41, False)])
def test_an_official_test_split_never_reaches_a_client(reference, from_official):
    official = set(range(400, 500))
    federated = federate(labelled(500, sorted(official)), DataSettings(clients=5, reference=reference, test=60), 0)
    assert numbers(federated.test) <= official
    assert (numbers(federated.reference) <= official) == from_official
    assert not numbers(federated.clients) & official
    assert not numbers(federated.reference) & (numbers(federated.test) | numbers(federated.clients))


def test_changing_the_partition_or_the_number_of_clients_keeps_the_held_out_rows():
    first = federate(labelled(500), DataSettings(clients=5), 0)
    second = federate(labelled(500), DataSettings(clients=9, partition={"name": "dirichlet"}), 0)
    assert numbers(first.reference) == numbers(second.reference)
    assert numbers(first.test) == numbers(second.test)


def test_more_held_out_rows_than_there_are_is_refused():
    with pytest.raises(DataError, match=r"data.reference needs 480 rows; only 450"):
        federate(labelled(500), DataSettings(clients=5, reference=480, test=50), 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clients": 0},
        {"clients": -1},
        {"reference": 0},
        {"reference": 1.0},
        {"test": -0.5},
        {"partition": {"name": "dirichlet", "alpha": 0}},
        {"partition": {"name": "diriclet"}},
        {"corruptions": [{"name": "noise", "fraction": 1.5}]},
        {"colour": "blue"},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        DataSettings.model_validate(wrong)
