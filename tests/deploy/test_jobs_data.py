"""The data of a party are what its configuration says, in numbers, classes and columns that all parties share."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from winnow.core import ConfigError, DataError
from winnow.data import DataSettings, InputSpec, Preprocessing, load
from winnow.data.preprocessing import Column
from winnow.data.split_into_site_folders import split_into_folders
from winnow.data.text import TextSettings
from winnow.deploy.jobs.ipc_messages import JobSite
from winnow.deploy.jobs.measurement_units_check import unit_lines, unlike_columns
from winnow.deploy.jobs.party_data import load_server_data, load_site_data
from winnow.deploy.jobs.server_training import common_description
from winnow.deploy.server.config import read_config
from winnow.deploy.site.config import load_config
from winnow.deploy.wire.messages import DataDescription

ROWS = [("age", "dose", "ward", "outcome"), (30, 1.0, "a", "home"), (50, 3.0, "b", "died"), (70, 2.0, "a", "home")]


def csv(path: Path, rows: list[tuple[Any, ...]] = ROWS) -> Path:
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def table(path: Path, **more: Any) -> dict[str, Any]:
    return {"file": str(path), "targets": ["outcome"], "owner": "ward", "classes": ["home", "moved", "died"], **more}


def test_owners_are_clients_and_labels_have_the_numbers_that_all_share(tmp_path: Path) -> None:
    data = load_site_data("stays", table(csv(tmp_path / "a.csv")), seed=0)
    assert data.description().sizes == [2, 1]
    assert data.description().outputs == 3
    assert data.clients.client(0).x.tolist() == [[30, 1], [70, 2]]
    assert data.clients.client(1).y.tolist() == [2]


def test_numbers_that_all_share_scale_features(tmp_path: Path) -> None:
    scale = {"mean": [50.0, 2.0], "sd": [20.0, 0.5]}
    data = load_site_data("stays", table(csv(tmp_path / "a.csv"), scale=scale), seed=0)
    np.testing.assert_allclose(data.clients.client(1).x, [[0.0, 2.0]])
    held = load_server_data("stays", {**table(tmp_path / "a.csv", scale=scale), "reference": str(tmp_path / "a.csv")})
    assert held.reference is not None
    assert held.test is None
    np.testing.assert_allclose(held.reference.x[-1], [0.0, 2.0])


@pytest.mark.parametrize("scale", ["standard", {"mean": [1.0], "sd": [1.0]}, {"mean": [1.0, 1.0], "sd": [0.0, 1.0]}])
def test_a_site_does_not_scale_by_its_own_rows(tmp_path: Path, scale: Any) -> None:
    with pytest.raises(DataError, match="numbers that all sites share"):
        load_site_data("stays", table(csv(tmp_path / "a.csv"), scale=scale), seed=0)


def test_a_sites_configuration_says_so_at_the_start(tmp_path: Path) -> None:
    csv(tmp_path / "a.csv")
    (tmp_path / "site.toml").write_text('[data.stays]\nfile = "a.csv"\ntargets = ["outcome"]\nscale = "standard"\n')
    with pytest.raises(ConfigError, match="would scale each site by its own rows"):
        load_config(tmp_path)


def member(name: str, path: Path, **more: Any) -> JobSite:
    data = load_site_data("stays", table(path, **more), seed=0, salt="job-1").description()
    return JobSite(site=name, first_client=0, data=data)


def test_sites_whose_columns_or_classes_are_in_another_order_do_not_learn_together(tmp_path: Path) -> None:
    north = member("north", csv(tmp_path / "a.csv"))
    swapped = [tuple(row[place] for place in (1, 0, 2, 3)) for row in ROWS]
    columns = member("south", csv(tmp_path / "b.csv", swapped))
    with pytest.raises(DataError, match=r"the columns of south and north differ.*features"):
        common_description([north, columns])
    named = member("south", tmp_path / "b.csv", features=["age", "dose"])
    assert common_description([north, named]) == north.data
    labels = member("south", tmp_path / "a.csv", classes=["died", "home", "moved"])
    with pytest.raises(DataError, match=r"the labels of south and north differ.*classes"):
        common_description([north, labels])


def test_digests_tell_no_names_and_differ_from_job_to_job(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv")
    one, other = (load_site_data("stays", table(path), seed=0, salt=job).description() for job in ("job-1", "job-2"))
    assert one.columns != other.columns
    assert one.labels != other.labels
    assert not any(word in f"{one}" for word in ("age", "dose", "home", "died"))


def test_a_servers_data_are_files_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('[data.stays]\nfile = "ref.csv"\n')
    with pytest.raises(ConfigError, match=r"unknown key 'file'; set folder"):
        read_config(tmp_path / "server.toml")
    (tmp_path / "server.toml").write_text('[data.stays]\nreference = "ref.csv"\ntargets = ["outcome"]\n')
    assert read_config(tmp_path / "server.toml").data["stays"]["reference"] == str(tmp_path / "ref.csv")


MIXED = [
    ("age", "sex", "name", "ward", "outcome"),
    (30, "f", "Ada", "a", "home"),
    ("", "m", "Bo", "b", "died"),
    (70, "", "Cy", "a", "home"),
]
STATED = Preprocessing(
    columns=(
        Column(name="age", fill=40.0, marks_missing=True, shift=50.0, width=10.0),
        Column(name="sex", kind="category", categories=("f", "m")),
    ),
    classes=("home", "moved", "died"),
)


def test_a_site_reads_its_table_as_the_job_states(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", MIXED)
    data = load_site_data("stays", table(path), seed=0, stated=STATED)
    assert data.clients.client(0).x.tolist() == [[-2, 0, 1, 0, 0], [2, 0, 0, 0, 1]]
    assert data.clients.client(1).x.tolist() == [[-1, 1, 0, 1, 0]]
    assert data.clients.client(1).y.tolist() == [2]
    assert (data.preprocessing, data.description().sample_shape) == (STATED, [5])
    held = load_server_data("stays", {**table(path), "reference": str(path)}, STATED)
    assert held.reference is not None
    assert held.test is None
    assert sorted(held.reference.x.tolist()) == sorted(data.clients.x.tolist())
    assert held.preprocessing == STATED


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row[1:] for row in MIXED], "column 'sex' has text, and all sites must encode it alike"),
        ([(row[0], *row[3:]) for row in MIXED], "column 'age' has missing values, and all sites must encode it alike"),
    ],
)
def test_a_site_makes_up_no_categories_and_fills_of_its_own(tmp_path: Path, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_site_data("stays", table(csv(tmp_path / "a.csv", rows)), seed=0)


def stated(*columns: Column, classes: tuple[str, ...] = ("home", "moved", "died")) -> Preprocessing:
    return Preprocessing(columns=columns, classes=classes)


PROBE = Column(name="name", kind="category", categories=("Ada",))


@pytest.mark.parametrize(
    ("more", "lie", "message"),
    [
        ({"features": ["age", "sex"]}, stated(PROBE), "asks for the column 'name', which is not among the features"),
        ({}, stated(Column(name="outcome", kind="category")), "asks for the column 'outcome'"),
        ({}, stated(Column(name="ward", kind="category", categories=("a",))), "asks for the column 'ward'"),
        ({}, stated(Column(name="sex", kind="category"), classes=("home", "died", "moved")), "the job states others"),
        ({"scale": {"mean": [1.0], "sd": [1.0]}}, STATED, "remove one of the two"),
        ({}, stated(Column(name="sex")), "column 'sex', data row 1 holds 'f', not a number"),
        ({}, Preprocessing(array=InputSpec(shape=(5,)), classes=STATED.classes), "names no columns"),
        ({}, Preprocessing(inputs=(InputSpec(name="ward", shape=()),), classes=STATED.classes), "column 'ward'"),
        ({"classes": 2}, stated(Column(name="age")), "the job states others"),
    ],
)
def test_a_job_gets_no_column_that_the_site_does_not_offer(
    tmp_path: Path, more: dict[str, Any], lie: Preprocessing, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_site_data("stays", table(csv(tmp_path / "a.csv", MIXED), **more), seed=0, stated=lie)


def test_labels_and_units_that_all_share_come_with_the_result(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv")
    scale = {"mean": [50.0, 2.0], "sd": [20.0, 0.5]}
    data = load_site_data("stays", table(path, scale=scale), seed=0)
    assert data.preprocessing.classes == ("home", "moved", "died")
    np.testing.assert_allclose(data.preprocessing.transform({"age": [50], "dose": [3.0]}), [[0.0, 2.0]])


def test_a_site_may_say_anything_about_its_columns() -> None:
    """Places that are not stated are not named, however many there are."""
    lie = DataDescription(sizes=[3], unlike_columns=dict.fromkeys(range(2, 1000), 100) | {0: -3})
    assert list(unit_lines([JobSite(site="liar", first_client=0, data=lie)], STATED)) == [
        "site liar: column 'age' is about 8 times smaller than the job states: other units?"
    ]
    with pytest.raises(msgspec.ValidationError, match="<= 100"):
        msgspec.convert({"sizes": [3], "unlike_columns": {0: 10**9}}, DataDescription)


@pytest.mark.parametrize(
    ("values", "shift", "width", "power"),
    [
        ([5.0, 7.0], 6.0, 2.0, None),  # as stated
        ([17.4, 20.3], 6.0, 2.0, None),  # three times larger: perhaps the sick
        ([90.0, 126.0], 6.0, 2.0, 4),  # mg/dL beside mmol/L
        ([0.28, 0.39], 6.0, 2.0, -4),
        ([0.001, 0.002], 0.0, 10.0, None),  # scaled by a range from 0: most values may be small
        ([0.0, 0.0], 0.3, 0.46, None),  # a flag that nobody here has
    ],
)
def test_columns_in_other_units_are_noticed_and_unlike_ones_are_not(
    values: list[float], shift: float, width: float, power: int | None, tmp_path: Path
) -> None:
    path = csv(tmp_path / "a.csv", [("a", "ward", "outcome"), *((value, "a", "home") for value in values)])
    stated = Preprocessing(columns=(Column(name="a", shift=shift, width=width),), classes=STATED.classes)
    found = unlike_columns(load_site_data("stays", table(path), seed=0, stated=stated))
    assert found == ({} if power is None else {0: power})


def test_what_is_filled_in_does_not_hide_other_units(tmp_path: Path) -> None:
    rows = [("a", "ward", "outcome"), (108.0, "a", "home"), *(("", "a", "home") for _ in range(20))]
    column = Column(name="a", shift=6.0, width=2.0, fill=6.0, marks_missing=True)
    stated = Preprocessing(columns=(column,), classes=STATED.classes)
    data = load_site_data("stays", table(csv(tmp_path / "a.csv", rows)), seed=0, stated=stated)
    assert unlike_columns(data) == {0: 4}


def test_tables_without_a_stated_preprocessing_are_not_used_without_a_word() -> None:
    tables = JobSite(site="a", first_client=0, data=DataDescription(sizes=[3], columns="digest"))
    arrays = JobSite(site="b", first_client=3, data=DataDescription(sizes=[3]))
    [line] = unit_lines([tables, arrays], None)
    assert "the job states no preprocessing" in line
    assert not list(unit_lines([arrays], None))


def test_folders_that_were_split_say_what_made_their_arrays(tmp_path: Path) -> None:
    """So that a model of `winnow local` predicts raw rows as one of a simulation does."""
    path = csv(tmp_path / "stays.csv", [*MIXED, *MIXED[1:]])
    settings = DataSettings(path=path, targets=("outcome",), features=("age", "sex"), owner="ward", reference=1, test=0)
    split_into_folders(settings, 0, 2, tmp_path / "out")
    made = load(settings).preprocessing
    site = {"folder": str(tmp_path / "out" / "site-1" / "stays")}
    assert load_site_data("stays", site, seed=0).preprocessing == made
    assert load_site_data("stays", site, seed=0).description().columns == "", "they are arrays, as far as units go"
    server = {"folder": str(tmp_path / "out" / "server" / "stays"), "classes": 2}
    assert load_server_data("stays", server).preprocessing == made
    (tmp_path / "out" / "site-1" / "stays" / "preprocessing.json").write_text("{")
    with pytest.raises(DataError, match=r"preprocessing\.json is damaged"):
        load_site_data("stays", site, seed=0)


def test_words_of_texts_are_identifiers_in_split_folders(tmp_path: Path) -> None:
    """Nothing in a kit's settings says so: read as numbers, no model of words could take them."""
    rows = [
        ("said", "user", "mood"),
        *((f"words {number} here", f"u{number % 4}", "+-"[number % 2]) for number in range(8)),
    ]
    text = TextSettings(words=50, length=3)
    settings = DataSettings(
        path=csv(tmp_path / "said.csv", rows), targets=("mood",), owner="user", text=text, reference=2, test=0
    )
    split_into_folders(settings, 0, 2, tmp_path / "out")
    site = load_site_data("said", {"folder": str(tmp_path / "out" / "site-1" / "said")}, seed=0)
    assert site.tokens
    assert site.clients.x.dtype == np.int64
    server = load_server_data("said", {"folder": str(tmp_path / "out" / "server" / "said"), "classes": 2})
    assert server.reference is not None
    assert server.reference.x.dtype == np.int64
    told = {"folder": str(tmp_path / "out" / "site-1" / "said"), "tokens": False}  # what a party says itself counts
    assert load_site_data("said", told, seed=0).clients.x.dtype == np.float32
