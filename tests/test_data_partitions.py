"""Partitions: every row at most once, nobody empty, and the shape that each one promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from winnow.core import DataError
from winnow.data import (
    ClassesPerClient,
    DataSettings,
    Dirichlet,
    DominantClass,
    FederatedData,
    IidPartition,
    NaturalPartition,
    NormalSizes,
    Partition,
    federate,
    from_arrays,
)

ROWS = 2_000


def spread(partition, clients, *, y=None, owners=None, rows=ROWS, seed=0, reference=1, test=0) -> FederatedData:
    """Federate rows whose only feature is their own number, so that a test can tell where each one went."""
    y = np.arange(rows) % 10 if y is None else y
    dataset = from_arrays(np.arange(len(y), dtype=np.float32)[:, None], y, owners=owners, scale="none")
    return federate(dataset, DataSettings(clients=clients, partition=partition, reference=reference, test=test), seed)


def originals(federated: FederatedData) -> np.ndarray:
    return federated.clients.x[federated.clients.rows][:, 0].astype(int)


PARTITIONS = [
    IidPartition(),
    NormalSizes(mean=50, sd=10),
    Dirichlet(alpha=0.3),
    ClassesPerClient(per_client=3),
    DominantClass(share=0.6),
    NaturalPartition(),
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda each: each.name)
def test_rows_are_given_once_to_clients_that_are_not_empty(partition):
    federated = spread(partition, 30, owners=np.arange(ROWS) % 40)
    held = originals(federated)
    assert len(federated.clients) == 30
    assert (federated.clients.sizes >= 1).all()
    assert len(np.unique(held)) == len(held)
    assert not np.isin(held, federated.reference.x).any()


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda each: each.name)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(partition):
    first, again, other = (spread(partition, 30, owners=np.arange(ROWS) % 40, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(originals(first), originals(again))
    assert np.array_equal(first.clients.offsets, again.clients.offsets)
    assert not np.array_equal(originals(first), originals(other))


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda each: each.name)
def test_features_and_labels_stay_together(partition):
    y = np.random.default_rng(0).integers(0, 10, ROWS)
    federated = spread(partition, 20, y=y, owners=np.arange(ROWS) % 20)
    assert np.array_equal(federated.clients.y, y[originals(federated)])


def test_every_partition_is_tested_and_can_be_chosen_by_name():
    assert {each.name for each in PARTITIONS} == set(Partition.members)
    for partition in PARTITIONS:
        assert DataSettings.model_validate({"partition": partition.model_dump()}).partition == partition


def test_client_gives_the_rows_of_its_index_list():
    clients = spread(Dirichlet(alpha=0.5), 7).clients
    assert np.array_equal(np.concatenate([clients.client(k).x for k in range(7)]), clients.x[clients.rows])
    assert [len(clients.rows_of(k)) for k in range(7)] == clients.sizes.tolist()


def test_iid_gives_everything_away_evenly():
    federated = spread(IidPartition(), 30)
    assert sorted(federated.clients.sizes) == [66] * 11 + [67] * 19
    assert federated.clients.sizes.sum() == ROWS - 1


@given(share=st.floats(0.05, 1), clients=st.integers(1, 60), classes=st.integers(2, 12), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_dominant_class_has_exactly_its_share_whatever_the_class_balance(share, clients, classes, seed):
    y = np.random.default_rng(seed).geometric(0.3, 1_500) % classes
    present, counts = np.unique(y, return_counts=True)
    try:
        federated = spread(DominantClass(share=share), clients, y=y)
    except DataError:
        clients_a_class = -(-clients // len(present))
        assert counts.min() <= clients_a_class or counts.sum() - counts.max() <= clients_a_class
        return
    size = federated.clients.sizes[0]
    assert (federated.clients.sizes == size).all()
    for client in range(clients):
        dominant = present[client % len(present)]
        assert (present[federated.clients.client(client).y] == dominant).sum() == round(share * size)


def test_dominant_class_uses_all_rows_where_classes_are_balanced():
    sizes = spread(DominantClass(share=0.6), 100, rows=10_000, reference=1).clients.sizes
    assert sizes.tolist() == [99] * 100


def test_dominant_class_is_refused_where_a_class_is_too_small():
    y = np.array([0] * 990 + [1] * 10)
    with pytest.raises(DataError, match="are not enough for 100 clients"):
        spread(DominantClass(share=0.9), 100, y=y)


def test_dirichlet_approaches_iid_for_a_large_alpha_and_single_classes_for_a_small_one():
    def largest_share(alpha: float) -> float:
        clients = spread(Dirichlet(alpha=alpha), 20).clients
        return float(np.mean([np.bincount(clients.client(k).y).max() / clients.sizes[k] for k in range(20)]))

    assert largest_share(1_000.0) < 0.2
    assert largest_share(0.01) > 0.8


def test_dirichlet_leaves_nobody_empty_even_with_as_many_clients_as_rows():
    assert spread(Dirichlet(alpha=0.001), ROWS - 1).clients.sizes.tolist() == [1] * (ROWS - 1)


@given(per_client=st.integers(1, 10), clients=st.integers(1, 80))
@settings(max_examples=40, deadline=None)
def test_classes_gives_each_client_exactly_so_many(per_client, clients):
    held = spread(ClassesPerClient(per_client=per_client), clients).clients
    assert all(len(np.unique(held.client(k).y)) == per_client for k in range(clients))


def test_classes_can_be_limited_to_so_many_rows_a_client():
    held = spread(ClassesPerClient(per_client=3, rows=31), 12).clients
    for k in range(12):
        _, counts = np.unique(held.client(k).y, return_counts=True)
        assert counts.tolist() == [10, 10, 10]


def test_normal_sizes_follow_the_distribution():
    sizes = spread(NormalSizes(mean=514, sd=101), 400, rows=300_000).clients.sizes
    assert abs(sizes.mean() - 514) < 4 * 101 / 20
    assert abs(sizes.std() - 101) < 15


def test_normal_sizes_shrink_in_proportion_to_what_there_is():
    sizes = spread(NormalSizes(mean=500, sd=100), 20).clients.sizes
    assert ROWS - 21 <= sizes.sum() <= ROWS - 1
    assert sizes.min() >= 1
    assert sizes.std() / sizes.mean() > 0.1


@pytest.mark.parametrize(("mean", "sd"), [(1e19, 0.0), (1e300, 1e300), (1e308, 1e308)])
def test_normal_sizes_beyond_all_bounds_share_what_there_is(mean, sd):
    sizes = spread(NormalSizes(mean=mean, sd=sd), 10).clients.sizes
    assert sizes.min() >= 1
    assert ROWS - 20 <= sizes.sum() < ROWS


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1e-9, 1e9, float("inf"), float("nan")])
def test_a_dirichlet_of_no_use_is_refused(alpha):
    with pytest.raises(ValidationError, match="alpha"):
        Dirichlet(alpha=alpha)


@pytest.mark.parametrize("alpha", [1e-6, 1e6])
def test_dirichlet_holds_at_its_bounds(alpha):
    assert spread(Dirichlet(alpha=alpha), 30).clients.sizes.sum() == ROWS - 1


def test_natural_clients_are_the_owners_and_rows_without_an_owner_stay_out():
    owners = np.array([7, 7, -1, 9, 9, 9, 12] * 100)
    federated = spread(NaturalPartition(), 0, y=np.zeros(700, dtype=int), owners=owners)
    of_row = owners[originals(federated)]
    assert len(federated.clients) == 3
    for client, owner in enumerate((7, 9, 12)):
        start, end = federated.clients.offsets[client : client + 2]
        assert set(of_row[start:end]) == {owner}


def test_natural_takes_as_many_owners_as_asked():
    owners = np.arange(ROWS) % 40
    assert len(spread(NaturalPartition(), 12, owners=owners).clients) == 12
    with pytest.raises(DataError, match="41 clients requested, but the data have 40 owners"):
        spread(NaturalPartition(), 41, owners=owners)


def test_a_hundred_thousand_clients_are_spread_without_an_object_each():
    for partition in (IidPartition(), Dirichlet(alpha=0.5), ClassesPerClient(per_client=2), NormalSizes(mean=3, sd=1)):
        clients = spread(partition, 100_000, rows=400_000).clients
        assert len(clients) == 100_000
        assert (clients.sizes >= 1).all()


@pytest.mark.parametrize(
    ("partition", "owners", "message"),
    [
        (IidPartition(), None, "cannot be spread over 5000 clients; lower data.clients"),
        (Dirichlet(), None, "cannot be spread over 5000 clients"),
        (ClassesPerClient(per_client=11), None, "only 10 classes"),
        (ClassesPerClient(per_client=3, rows=2), None, "too few for 3 classes"),
        (ClassesPerClient(per_client=2), None, "share a class of"),
        (NaturalPartition(), None, "the data have no owners"),
        (NaturalPartition(), np.full(ROWS, -1), "none of the clients' rows has an owner"),
    ],
)
def test_what_cannot_be_spread_is_refused(partition, owners, message):
    with pytest.raises(DataError, match=message):
        spread(partition, 5_000, owners=owners)


@pytest.mark.parametrize("partition", [Dirichlet(), ClassesPerClient(), DominantClass()], ids=lambda each: each.name)
def test_partitions_by_class_are_refused_for_a_regression(partition):
    with pytest.raises(DataError, match="needs one class label per row"):
        spread(partition, 5, y=np.linspace(0, 1, ROWS))
