"""Few labels: who has them, that nobody else sees them, and what methods make of rows without."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import winnow
from winnow.core import ConfigError, DataError
from winnow.data import (
    ClassesPerClient,
    DataSettings,
    FlippedLabels,
    OnDemand,
    federate,
    from_arrays,
    from_frame,
    load,
)
from winnow.data.hidden_labels import with_labelled_rows
from winnow.data.split_into_site_folders import split_into_folders
from winnow.deploy.jobs.party_data import load_server_data, load_site_data
from winnow.learn import algorithms as _algorithms  # noqa: F401  # makes all methods known
from winnow.learn.algorithm import Recipe

ROWS, CLASSES, CLIENTS = 600, 4, 6
KEPT_FILES = ("events.jsonl", "best.safetensors", "last.safetensors", "metrics.csv", "evaluation.json", "report.html")
"""What a run leaves, but for times of day and the commit, which may change while a test runs."""


def table(seed=0, scrambled=()):
    """Rows that know their number: the first column. Labels of the scrambled rows are dealt out anew among them."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, ROWS)
    x = np.column_stack([np.arange(ROWS) / ROWS, rng.normal(size=(ROWS, 4)) + y[:, None]]).astype(np.float32)
    scrambled = np.asarray(scrambled, np.int64)
    y[scrambled] = y[np.random.default_rng(9).permutation(scrambled)]
    return from_arrays(x, y, name="table", scale="none", classes=CLASSES)


def spread(labels, seed=3, **more):
    settings = {"clients": CLIENTS, "reference": 40, "test": 30, "labels": labels, **more}
    return federate(table(), DataSettings(**settings), seed)


def numbers(examples):
    return row_numbers(examples.x)


def row_numbers(x):
    return np.rint(x[:, 0] * ROWS).astype(int)


def truth_of(examples):
    return table().y[numbers(examples)]


@pytest.mark.parametrize("partition", [ClassesPerClient(per_client=2), None])
def test_rows_are_spread_before_labels_are_hidden(partition):
    more = {} if partition is None else {"partition": partition}
    plain, hidden = spread(None, **more), spread({"at": "clients", "share": 0.25}, **more)
    assert np.array_equal(plain.clients.offsets, hidden.clients.offsets)
    assert np.array_equal(plain.clients.x, hidden.clients.x)
    for client in range(CLIENTS):
        own = hidden.clients.client(client)
        known = own.y >= 0
        assert known.sum() == max(1, round(0.25 * len(own)))
        assert np.array_equal(own.y[known], truth_of(own)[known])
        truth = hidden.hidden_labels[hidden.clients.rows_of(client)]
        assert np.array_equal(truth, np.where(known, -1, truth_of(own)))


def test_so_many_labels_of_each_class_and_client():
    found = spread({"at": "clients", "per_class": 3}).clients
    for client in range(CLIENTS):
        own = found.client(client)
        counts = np.bincount(own.y[own.y >= 0], minlength=CLASSES)
        assert counts.tolist() == np.minimum(np.bincount(truth_of(own), minlength=CLASSES), 3).tolist()


def test_some_clients_have_all_their_labels():
    found = spread({"at": "some", "clients": 0.34}).clients
    share = [(found.client(client).y >= 0).mean() for client in range(CLIENTS)]
    assert sorted(share) == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("in_place", [False, True])
def test_the_server_has_labelled_rows_and_everybody_the_open_ones(in_place):
    dataset = table()
    settings = DataSettings(
        clients=CLIENTS, reference=40, test=30, labels={"at": "server", "rows": 42}, open=50, local_test=0.0
    )
    found = federate(dataset, settings, 3, in_place=in_place)
    taught = found.server_labelled
    assert sorted(np.bincount(taught.y).tolist()) == [10, 10, 11, 11]
    assert np.array_equal(taught.y, truth_of(taught))
    assert (found.clients.y[found.clients.rows] == -1).all()
    held = [numbers(each) for each in (found.reference, found.test, taught)]
    held += [row_numbers(found.open), row_numbers(found.clients.x[found.clients.rows])]
    assert sorted(np.concatenate(held).tolist()) == list(range(ROWS)), "every row is somebody's, and one's alone"
    if in_place:
        shown = np.concatenate([held[0], held[1]])
        assert set(np.flatnonzero(found.clients.y >= 0)) == set(shown.tolist()), "no hidden label is left in the array"


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_clients_may_have_labels_beside_the_server_and_nobody_s_rows_change(share):
    alone, beside = (spread({"at": "server", "rows": 42, **more}) for more in ({}, {"share": share}))
    assert np.array_equal(alone.server_labelled.x, beside.server_labelled.x)
    assert np.array_equal(alone.clients.x[alone.clients.rows], beside.clients.x[beside.clients.rows])
    for client in range(CLIENTS):
        own = beside.clients.client(client)
        assert (own.y >= 0).sum() == round(share * len(own))
        assert np.array_equal(own.y[own.y >= 0], truth_of(own)[own.y >= 0])


def test_owners_without_labels_are_named_and_can_be_what_is_tested():
    owners = np.array(["photo", "sketch", "art"])[np.arange(ROWS) % 3]
    data = from_arrays(table().x, table().y, owners=owners, scale="none")
    labels = {"at": "some", "without": ("sketch",)}
    settings = {"clients": 0, "partition": {"name": "natural"}, "reference": 30, "test": 20, "labels": labels}
    found = federate(data, DataSettings(**settings, test_owners="sketch"), 0)
    shares = {name: (found.clients.client(k).y >= 0).mean() for k, name in enumerate(found.owner_names)}
    assert shares == {"art": 1, "photo": 1, "sketch": 0}
    assert {int(row) % 3 for each in (found.reference, found.test) for row in numbers(each)} == {1}
    with pytest.raises(DataError, match=r"data\.labels: without: did you mean 'sketch'"):
        federate(data, DataSettings(**{**settings, "labels": {"at": "some", "without": ("skech",)}}), 0)
    with pytest.raises(DataError, match="clients are none"):
        federate(table(), DataSettings(clients=3, labels=labels), 0)
    with pytest.raises(DataError, match="needs 190 rows"):
        federate(data, DataSettings(**{**settings, "reference": 190}, test_owners="sketch"), 0)


def test_clients_test_on_labelled_rows_alone():
    found = spread({"at": "clients", "share": 0.5}, local_test=0.4)
    assert (found.local_test.y[found.local_test.rows] >= 0).all()
    assert found.local_test.sizes.tolist() == [round(0.4 * round(0.5 * n)) for n in spread(None).clients.sizes]
    assert not set(found.local_test.rows) & set(found.clients.rows)


def test_a_label_that_is_not_there_is_not_flipped():
    y = np.tile([0, 1, 2, -1], 50)
    data = from_arrays(np.random.default_rng(0).normal(size=(200, 3)), y, scale="none")
    settings = DataSettings(clients=4, reference=20, test=20, corruptions=(FlippedLabels(fraction=1.0),))
    clients = federate(data, settings, 0).clients
    assert (clients.y == -1).sum() == 50


# Own data -------------------------------------------------------------------------------------------------------------


def test_empty_cells_and_minus_one_are_no_label(tmp_path):
    x = np.arange(8.0).reshape(4, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.array([5, -1, 7, 5]))
    (tmp_path / "b.csv").write_text("a,b,y\n1,2,ill\n3,4,\n5,6,well\n7,8,ill\n")
    (tmp_path / "c.csv").write_text("a,b,y\n1,2,5\n3,4,\n5,6,7\n7,8,5\n")
    frame = {"a": [1, 2, 3, 4], "b": [0.5, 2, 3, 4], "y": ["ill", None, "well", "ill"]}
    found = [
        load(DataSettings(path=tmp_path / "a.npz")),
        load(DataSettings(path=tmp_path / "b.csv", targets="y")),
        load(DataSettings(path=tmp_path / "c.csv", targets="y")),
        from_frame(frame, targets="y"),
    ]
    for data in found:
        assert (data.y.tolist(), data.classes) == ([0, -1, 1, 0], 2)
    assert from_arrays(x, [-1, 1, 1, -1]).y.tolist() == [0, 1, 1, 0], "two labels are two classes"
    assert from_arrays(x, [-2, -1, 0, 1]).classes == 4


def test_models_are_evaluated_on_labelled_rows():
    y = np.where(np.arange(200) % 4 > 0, -1, np.arange(200) % 3)
    data = from_arrays(np.random.default_rng(0).normal(size=(200, 3)), y, scale="none")
    found = federate(data, DataSettings(clients=4, reference=20, test=20), 0)
    assert (found.reference.y >= 0).all()
    assert (found.test.y >= 0).all()
    with pytest.raises(DataError, match=r"data\.test needs 60 rows with labels; only 50 are available"):
        federate(data, DataSettings(clients=4, reference=20, test=60), 0)
    shares = federate(data, DataSettings(clients=4, reference=0.3, test=0.5), 0)
    assert (len(shares.reference), len(shares.test)) == (15, 25), "shares of the 50 rows that have labels"
    with pytest.raises(DataError, match="needs one class label per row"):
        federate(data, DataSettings(clients=4, reference=20, test=20, partition=ClassesPerClient(per_client=1)), 0)
    with pytest.raises(DataError, match="no row has a label"):
        federate(from_arrays(np.eye(9), np.full(9, -1)), DataSettings(clients=1, reference=1, test=1), 0)


def test_sites_and_the_server_get_their_parts(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(0).normal(size=(90, 3)), y=np.arange(90) % 3)
    settings = {"path": tmp_path / "own.npz", "clients": 4, "reference": 9, "test": 9, "scale": "none"}
    split_into_folders(DataSettings(**settings, labels={"at": "server", "rows": 12}, open=5), 0, 2, tmp_path / "out")
    server = load_server_data("own", {"folder": str(tmp_path / "out" / "server" / "own"), "classes": 3})
    assert np.bincount(server.labelled.y).tolist() == [4, 4, 4]
    site = load_site_data("own", {"folder": str(tmp_path / "out" / "site-1" / "own")}, seed=0)
    assert np.array_equal(site.open, server.open)
    assert site.open.shape == (5, 3)
    assert (site.clients.y == -1).all()
    with pytest.raises(DataError, match=r"no client has a label, and client.name = 'plain' learns from labelled rows"):
        site.labelled_rows("client.name = 'plain'")


def test_a_site_whose_file_lacks_labels_leaves_rows_and_clients_out(tmp_path):
    rows = ["30,a,home", "50,b,", "70,a,", "20,c,died", "25,c,home"]
    (tmp_path / "a.csv").write_text("age,ward,outcome\n" + "\n".join(rows) + "\n")
    section = {"file": str(tmp_path / "a.csv"), "targets": ["outcome"], "owner": "ward", "classes": ["home", "died"]}
    site = load_site_data("stays", {**section, "client_names": True}, seed=0)
    assert site.description().sizes == [2, 1, 2]
    left, notice = site.labelled_rows("fedavg")
    assert (left.description().sizes, left.client_names) == ([1, 2], ("a", "c"))
    assert notice == ("fedavg trains on the 3 of 5 rows that have a label; 1 of 3 clients have none, and take no part")
    (tmp_path / "none.csv").write_text("age,ward,outcome\n30,a,\n50,b,\n")
    assert (load_site_data("stays", {**section, "file": str(tmp_path / "none.csv")}, seed=0).clients.y == -1).all()
    with pytest.raises(DataError, match=r"row 2 of .*a\.csv has no label"):
        load_server_data("stays", {**section, "reference": str(tmp_path / "a.csv")})


# Runs -----------------------------------------------------------------------------------------------------------------


def network():
    torch.manual_seed(0)
    return nn.Linear(5, CLASSES)


SECTION = {"clients": CLIENTS, "reference": 40, "test": 30}


def run(data, labels=None, section=SECTION, out=None, **more):
    section = section if labels is None else {**section, "labels": labels}
    settings = {
        "data": section,
        "algorithm": "fedavg",
        "rounds": 3,
        "seed": 3,
        "local": {"name": "sgd", "learning_rate": 0.1, "batch_size": 16},
    }
    settings["select"] = {"fraction": 1.0}
    return winnow.run({**settings, **more}, data=data, model=network(), out=out)


@pytest.mark.parametrize("labels", [{"at": "clients", "share": 0.3}, {"at": "some", "clients": 0.5}])
def test_a_plain_method_trains_as_if_unlabelled_rows_were_not_there(labels):
    found = with_labelled_rows(spread(labels), "fedavg")[0]
    clients = [found.clients.client(k) for k in range(len(found.clients))]
    without = OnDemand(
        clients=len(clients),
        sizes=[len(each) for each in clients],
        load=lambda k: (clients[k].x, clients[k].y),
        classes=CLASSES,
        reference=(found.reference.x, found.reference.y),
        test=(found.test.x, found.test.y),
    )
    few = run(table(), labels)
    there = run(without, section={})
    for one, other in zip(few.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(next(few.model.parameters()), next(run(table()).model.parameters()))


@pytest.mark.parametrize("method", ["fixmatch", "fedmatch"])
def test_where_all_labels_are_known_there_are_none_to_give(tmp_path, method):
    few = run(table(), {"at": "server", "rows": 40, "share": 1.0}, algorithm=method, out=tmp_path)
    assert few.view.evaluation.pseudo_labels is None
    assert "Of these, right" not in (tmp_path / "report.html").read_text()


def run_folder(path, data, labels, **more):
    run(data, labels, out=path, **more)
    started, commit = rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC", rb"<td>[0-9a-f]{12}(-dirty)?</td>"
    return {name: re.sub(started + b"|" + commit, b"", (path / name).read_bytes()) for name in KEPT_FILES}


TELLING_HOW_MANY_ARE_RIGHT = ["evaluation.json", "report.html"]
"""What a simulation writes at its end about the labels that clients gave their samples."""


AT_CLIENTS, AT_SOME, AT_SERVER = (
    {"at": "clients", "share": 0.3},
    {"at": "some", "clients": 0.5},
    {"at": "server", "rows": 40},
)
HEADS = {"hidden": 16, "width": 8}
HIDDEN_AS_ROWS = [
    (AT_CLIENTS, {"algorithm": "fedavg"}),
    (AT_CLIENTS, {"algorithm": "fixmatch", "client": {"threshold": 0.4}}),
    (AT_SOME, {"algorithm": "rscfed"}),
    (AT_SOME, {"algorithm": "fade", "client": {"hidden": 8}}),
    (AT_CLIENTS, {"algorithm": "fedema", "client": HEADS}),
    (AT_CLIENTS, {"algorithm": "fedmatch", "client": {"threshold": 0.3}}),
]
HIDDEN_AS_ROWS_SLOW = [
    (AT_CLIENTS, {"algorithm": "fed-byol", "client": HEADS}),
    (AT_CLIENTS, {"algorithm": "fed-byol", "client": {**HEADS, "fedx": 1.0}}),
    (AT_CLIENTS, {"algorithm": "fedu", "client": HEADS}),
    (AT_CLIENTS, {"algorithm": "orchestra", "client": {**HEADS, "clusters": 8, "own_clusters": 4}}),
    (AT_CLIENTS, {"algorithm": "ds-fl", "section": {**SECTION, "open": 50}}),
    (AT_SOME, {"algorithm": "fade", "client": {"hidden": 8}, "server": {"name": "gap-gain"}}),
]
HIDDEN_AFTER_SPREADING = [
    ({"at": "clients", "per_class": 3}, {"algorithm": "fedavg"}),
    (AT_SERVER, {"algorithm": "semifl", "client": {"threshold": 0.3}}),
    (AT_SERVER, {"algorithm": "fedmatch", "client": {"threshold": 0.3}}),
]
HIDDEN_AFTER_SPREADING_SLOW = [
    (AT_SERVER, {"algorithm": "semifl", "client": {"threshold": 0.3}, "select": {"name": "profile", "fraction": 0.5}}),
    (AT_SERVER, {"algorithm": "fixmatch", "client": {"threshold": 0.3}}),
    (AT_SERVER, {"algorithm": "server-only"}),
]
GIVES_LABELS = {"fixmatch", "fedmatch", "semifl"}


def slow(cases):
    return [pytest.param(*case, marks=pytest.mark.slow(part="science")) for case in cases]


def test_no_method_is_left_out_of_the_scrambling():
    """One that reads unlabelled rows could read what is hidden; a new one has to be added."""
    cases = [*HIDDEN_AS_ROWS, *HIDDEN_AS_ROWS_SLOW, *HIDDEN_AFTER_SPREADING, *HIDDEN_AFTER_SPREADING_SLOW]
    methods = {name: recipe.client() for name, recipe in Recipe.known.items() if recipe.client is not None}
    known = {name for name, method in methods.items() if method.uses_unlabelled}
    assert known <= {method["algorithm"] for _, method in cases}
    assert len(known) >= 10


@pytest.mark.parametrize(("labels", "method"), [*HIDDEN_AS_ROWS, *slow(HIDDEN_AS_ROWS_SLOW)])
def test_scrambling_hidden_labels_changes_no_byte(tmp_path, labels, method):
    """Of the user's rows: as they come in, before anything is spread."""
    found = spread(labels, **{key: size for key, size in method.get("section", {}).items() if key == "open"}).clients
    hidden = row_numbers(found.x[found.rows[found.y[found.rows] < 0]])
    scrambled = table(scrambled=hidden)
    assert (scrambled.y != table().y).sum() > 100
    one, other = (
        run_folder(tmp_path / name, data, labels, **method) for name, data in (("a", table()), ("b", scrambled))
    )
    measured = TELLING_HOW_MANY_ARE_RIGHT if method["algorithm"] in GIVES_LABELS else []
    assert [name for name in one if one[name] != other[name]] == measured


@pytest.mark.parametrize(("labels", "method"), [*HIDDEN_AFTER_SPREADING, *slow(HIDDEN_AFTER_SPREADING_SLOW)])
def test_scrambling_what_is_hidden_after_classes_were_spread_changes_no_byte(tmp_path, monkeypatch, labels, method):
    """Where who gets which label known depends on labels, they are scrambled where they end up."""
    whole = run_folder(tmp_path / "a", table(), labels, **method)
    module = sys.modules["winnow.experiment.prepare_clients"]

    def scrambling(*args, **kwargs):
        found = federate(*args, **kwargs)
        return replace(found, hidden_labels=np.where(found.hidden_labels < 0, -1, CLASSES - 1 - found.hidden_labels))

    monkeypatch.setattr(module, "federate", scrambling)
    other = run_folder(tmp_path / "b", table(), labels, **method)
    measured = TELLING_HOW_MANY_ARE_RIGHT if method["algorithm"] in GIVES_LABELS else []
    assert [name for name in whole if whole[name] != other[name]] == measured


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"labels": {"at": "server", "rows": 9}}, r"at = \"server\", … } cannot be used with client.name = 'plain'"),
        (
            {"labels": {"at": "server", "rows": 9, "share": 0.5}},
            r"at = \"server\", share = 0.5, … } cannot be used with client.name = 'plain'; choose an algorithm that can"
            r" \((?!.*semifl).*fixmatch",
        ),
        ({"labels": {"at": "server", "share": 0.5}}, "labels at 'server' need rows, and nothing else but share"),
        ({"labels": {"at": "clients"}}, "labels at 'clients' need share or per_class, and nothing else"),
        (
            {"labels": {"at": "some", "clients": 0.5, "share": 0.5}},
            "labels at 'some' need clients or without, and nothing else",
        ),
        ({"labels": {"at": "server", "rows": 9}, "local_test": 0.2}, "local_test needs labels at clients"),
        ({"labels": {"at": "home", "rows": 9}}, "at = 'home' is unknown"),
        ({"left_out": "a", "test": 9}, "test has no effect beside left_out"),
        ({"open": 10_000}, "data.open needs 10000 rows; only"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(data, message):
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        run(table(), section={"clients": CLIENTS, **data})
    assert "\n" not in str(caught.value)


def test_labels_are_hidden_of_classes_alone():
    values = from_arrays(np.eye(30), np.linspace(0, 1, 30))
    with pytest.raises(DataError, match="need one class label per row"):
        federate(values, DataSettings(clients=2, labels={"at": "clients", "share": 0.5}), 0)


def test_clients_loaded_on_demand_must_have_labels():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 5)), np.arange(9) % CLASSES
    data = OnDemand(
        clients=3, sizes=9, load=lambda k: (x, np.where(k == 2, -1, y)), classes=CLASSES, reference=(x, y), test=(x, y)
    )
    with pytest.raises(DataError, match=r"client 2: row 1 has no label, and client.name = 'plain' learns from labels"):
        run(data, section={})
    with pytest.raises(DataError, match="row 1 of the reference set has no label"):
        replace(data, reference=(x, y - 1)).to_federated(reference_at_clients=False)


# Owners left out ------------------------------------------------------------------------------------------------------


def test_owners_left_out_are_the_test_set():
    owners = np.array(["photo", "sketch", "art"])[np.arange(ROWS) % 3]
    data = from_arrays(table().x, table().y, owners=owners, scale="none")
    settings = DataSettings(left_out=("sketch",), clients=0, partition={"name": "natural"}, reference=20)
    found = federate(data, settings, 0)
    assert sorted(numbers(found.test).tolist()) == list(range(1, ROWS, 3))
    assert found.owner_names == ("art", "photo")
    assert not set(numbers(found.reference)) & set(numbers(found.test))
    assert sum(found.clients.sizes) == ROWS * 2 // 3 - 20
    with pytest.raises(DataError, match="did you mean 'sketch'"):
        federate(data, settings.model_copy(update={"left_out": ("skech",)}), 0)
    with pytest.raises(DataError, match="these rows have none"):
        federate(table(), DataSettings(left_out=("sketch",)), 0)
