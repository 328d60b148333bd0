"""Compression inside secure aggregation: in whole runs, in the mask keeper, and against a server that lies."""

import os

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from keeper_process import KeeperProcess
from winnow.core import ConfigError, Reply, RoundFinished
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.privacy.compress import ProductQuantisation
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.masks import SEED_BYTES, add_mask
from winnow.privacy.secagg.modular_vectors import Segment, VectorGroup
from winnow.privacy.secagg.protocol_tasks import SECURE
from winnow.privacy.secagg.secure_indexing import assignments_digest, histograms, read_histograms
from winnow.privacy.secagg.session_terms import SessionTerms
from winnow.privacy.secagg.simulated_identities import simulated_identities
from winnow.privacy.secagg.third_party_mask_keeper import DepositContents, MaskKeeper, group_digest, make_deposit
from winnow.runs.event_log import encode_event
from world import blobs, experiment, prepared

CODES = {
    "pruned": 'name = "random-pruning", fraction = 0.3',
    "product": 'name = "product-quantisation", codewords = 16, block = 2, min_weights = 0',
}
PAIRWISE = 'collect={{name = "secure", min_clients = 2, max_weight_share = 0.9, encoding = {{{code}}}}}'
KEPT = PAIRWISE.replace("min_clients", "keeper = true, min_clients")
WORLD = ("model.hidden=[40]", "select.count=4")


def secure(code: str, way: str = KEPT) -> str:
    return way.format(code=CODES[code])


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedprof", "fednova"])
@pytest.mark.parametrize("code", CODES)
def test_algorithms_that_live_on_sums_learn(code: str, algorithm: str) -> None:
    ready = prepared(secure(code), *WORLD, "rounds=15", algorithm=algorithm)
    events = list(ready.training.run(ready.federation))
    assert not [event for event in events if event.kind == "rejected"]
    assert [event for event in events if isinstance(event, RoundFinished)][-1].metrics["test"]["accuracy"] > 0.6


def first_step(*options: str, algorithm: str = "fedavg") -> torch.Tensor:
    """How far the first weights go in a first round."""
    ready = prepared(*options, *WORLD, "rounds=1", algorithm=algorithm)
    before = {name: tensor.clone() for name, tensor in ready.training.model.items()}
    events = list(ready.training.run(ready.federation))
    assert not [event for event in events if event.kind == "rejected"]
    name = next(iter(before))
    return ready.training.model[name] - before[name]


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_first_codebook_of_public_samples_knows_more_than_one_of_noise(algorithm: str) -> None:
    exact = first_step(algorithm=algorithm)
    errors = [
        float((first_step(secure("product"), f"collect.parameter_source={kind}", algorithm=algorithm) - exact).norm())
        for kind in ("sum", "public")
    ]
    assert errors[1] < 0.7 * errors[0]
    assert errors[1] < 0.5 * float(exact.norm())


def test_public_samples_at_clients_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r'collect.parameter_source = "public" needs samples at the server'):
        prepared(secure("product"), *WORLD, "collect.parameter_source=public", "reference_clients=[0]")


@pytest.mark.parametrize("parameters", ["sum", "public"])
@pytest.mark.parametrize("code", CODES)
def test_resuming_equals_no_interruption(code: str, parameters: str) -> None:
    """Codebooks, scales and the mask's seed are part of a checkpoint."""
    options = (secure(code), *WORLD, "rounds=4", f"collect.parameter_source={parameters}")
    whole, first, begun = prepared(*options, algorithm="fedavg"), prepared(*options, algorithm="fedavg"), []
    log = [encode_event(event) for event in whole.training.run(whole.federation)]
    for event in first.training.run(first.federation):
        begun.append(encode_event(event))
        if isinstance(event, RoundFinished) and event.round == 2:
            break
    again = prepare_run(experiment(*options, algorithm="fedavg"), RunInputs(dataset=blobs()), snapshot=first.snapshot())
    assert begun + [encode_event(event) for event in again.training.run(again.federation)] == log
    assert all(torch.equal(tensor, again.training.model[name]) for name, tensor in whole.training.model.items())


def test_pruning_goes_with_pairwise_masks() -> None:
    kept, pairwise = (prepared(secure("pruned", way), *WORLD, algorithm="fedavg") for way in (KEPT, PAIRWISE))
    for ready in (kept, pairwise):
        assert not [event for event in ready.training.run(ready.federation) if event.kind == "rejected"]
    assert all(torch.equal(tensor, kept.training.model[name]) for name, tensor in pairwise.training.model.items())


def test_product_quantisation_under_pairwise_masks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"encoding.name = 'product-quantisation' needs a keeper: .* pairwise masks"):
        experiment(secure("product", PAIRWISE), algorithm="fedavg")


def test_compressing_filters_are_refused_under_secure_aggregation() -> None:
    with pytest.raises(ConfigError, match="filters: compress sends packets, which cannot be summed"):
        experiment(secure("pruned"), 'filters=["compress"]', algorithm="fedavg")


def test_other_filters_work_before_the_masks() -> None:
    """An update that is clipped to next to nothing sums up to next to nothing."""
    ready = prepared(secure("pruned"), 'filters=[{name = "clip", norm = 1e-6}]', *WORLD, "rounds=1", algorithm="fedavg")
    before = ready.training.model
    assert not [event for event in ready.training.run(ready.federation) if event.kind == "rejected"]
    moved = torch.cat([(ready.training.model[name] - before[name]).reshape(-1) for name in before])
    assert float(moved.abs().max()) < 0.02


@pytest.mark.parametrize("stated", [None, 2_000_000])
def test_bytes_on_the_link_are_those_of_the_code(stated: int | None) -> None:
    """The devices pay for what is really sent: log₂ k bits a block, and what is around them. Where the fleet says what
    a model weighs, they pay as much more as it weighs more.
    """
    seen: list[int] = []
    sets = () if stated is None else (f"fleet.message_mb={stated / 1e6}",)
    ready = prepared(secure("product"), *WORLD, *sets, "rounds=1", algorithm="fedavg")
    times = 1 if stated is None else stated / (4 * (5 * 40 + 40 + 40 * 3 + 3))
    dispatch = ready.federation.dispatch

    class Noting:
        population, clock, settle = ready.federation.population, ready.federation.clock, ready.federation.settle
        simulated, randomness = True, ready.federation.randomness

        def dispatch(self, tasks, *until):
            exchange = dispatch(tasks, *until)

            class Noted(type(exchange)):
                def __iter__(self):
                    for outcome in super().__iter__():
                        if isinstance(outcome, Reply) and "words" in outcome.payload.get(SECURE, {}):
                            seen.append(outcome.payload[SECURE]["words"].nbytes)
                            assert 0 <= outcome.task.work.upload_bytes - times * seen[-1] < 400
                        yield outcome

            exchange.__class__ = Noted
            return exchange

    list(ready.training.run(Noting()))
    blocks = (5 * 40 // 2 * 4 + 40 * 3 * 4) / 8  # 16 codewords for 100 blocks of 2; for 120 of 1, as 60 are too few
    assert len(seen) == 4
    assert blocks < seen[0] < blocks + 300


# The keeper ---------------------------------------------------------------------------------------------------------

GROUP = VectorGroup((Segment(50, 4), Segment(7, 32)))
TERMS = SessionTerms(session=b"s" * 16, round=1, threshold=0.6, min_clients=2, graph="complete", neighbours=None)


class Cohort:
    """Clients that have deposited their seeds, and what the server has of them."""

    def __init__(self, keeper, clients: int = 4) -> None:
        self.keeper, self.chosen, self.masked = keeper, {}, {}
        for client in range(clients):
            self.chosen[client] = np.random.default_rng(client).integers(0, 16, 50).astype(np.uint8)
            vector, seed = [self.chosen[client].copy(), np.zeros(7, np.uint32)], os.urandom(SEED_BYTES)
            add_mask(vector, seed, GROUP, sign=1)
            words = GROUP.pack(GROUP.reduce(vector))
            self.masked[client] = words[:25]
            assigned = assignments_digest(words, GROUP, 1)
            contents = DepositContents(
                seed=seed,
                members=clients,
                inputs_digest=b"inputs",
                weight=1.0,
                group_digest=group_digest(GROUP),
                assigned=assigned,
            )
            keeper.deposit(TERMS, make_deposit(client, contents, keeper.key(TERMS), TERMS, simulated_identities()))

    def asked(self, masked, indexed: int = 1):
        return read_histograms(self.keeper.histograms(TERMS, masked, GROUP, indexed), GROUP, indexed)[0]

    def by_hand(self, clients) -> np.ndarray:
        counts = np.zeros((50, 16), int)
        for client in clients:
            for block, word in enumerate(self.chosen[client]):
                counts[block, word] += 1
        return counts


@pytest.fixture
def cohort() -> Cohort:
    return Cohort(MaskKeeper(simulated_identities(), threshold=0.6, min_clients=2, max_weight_share=0.75))


class TestTheKeeper:
    @pytest.mark.parametrize("survivors", [[0, 1, 2, 3], [0, 1, 3], [1, 2, 3]])
    def test_it_counts_the_survivors_codewords(self, cohort: Cohort, survivors: list[int]) -> None:
        cohort.keeper.total(TERMS, survivors, GROUP)
        counted = cohort.asked({k: cohort.masked[k] for k in survivors})
        assert np.array_equal(counted, cohort.by_hand(survivors))

    def test_in_a_process_of_its_own(self) -> None:
        with KeeperProcess(simulated_identities(), threshold=0.6, min_clients=2, max_weight_share=0.75) as keeper:
            cohort = Cohort(keeper)
            keeper.total(TERMS, [0, 1, 2, 3], GROUP)
            assert np.array_equal(cohort.asked(cohort.masked), cohort.by_hand(range(4)))
            with pytest.raises(ProtocolError, match="already released"):
                cohort.asked(cohort.masked)

    def test_it_counts_once(self, cohort: Cohort) -> None:
        cohort.keeper.total(TERMS, [0, 1, 2, 3], GROUP)
        cohort.asked(cohort.masked)
        with pytest.raises(ProtocolError, match="already released"):
            cohort.asked(cohort.masked)

    def test_it_counts_for_the_survivors_of_the_sum_alone(self, cohort: Cohort) -> None:
        with pytest.raises(ProtocolError, match="after the sum"):
            cohort.asked(cohort.masked)
        cohort.keeper.total(TERMS, [0, 1, 2], GROUP)
        with pytest.raises(ProtocolError, match="for the same survivors"):
            cohort.asked(cohort.masked)

    def test_too_few_are_not_counted(self, cohort: Cohort) -> None:
        with pytest.raises(ProtocolError, match="too few"):
            cohort.keeper.total(TERMS, [0, 1], GROUP)
        with pytest.raises(ProtocolError):
            cohort.asked({k: cohort.masked[k] for k in (0, 1)})

    def test_a_server_that_shifts_words_is_noticed(self, cohort: Cohort) -> None:
        """Added to a masked word, a number goes through to the word: all but one client's could be moved aside."""
        cohort.keeper.total(TERMS, [0, 1, 2, 3], GROUP)
        shifted = bytes([cohort.masked[1][0] ^ 1]) + cohort.masked[1][1:]
        with pytest.raises(ProtocolError, match="client 1 are not those that it masked"):
            cohort.asked({**cohort.masked, 1: shifted})

    @pytest.mark.parametrize("indexed", [0, 2, 3])
    def test_what_is_summed_is_not_counted(self, cohort: Cohort, indexed: int) -> None:
        cohort.keeper.total(TERMS, [0, 1, 2, 3], GROUP)
        with pytest.raises(ProtocolError):
            cohort.asked(cohort.masked, indexed)

    def test_long_words_are_not_counted(self) -> None:
        group = VectorGroup((Segment(2, 64),))
        with pytest.raises(ProtocolError, match="at most 8 bits"):
            histograms({0: bytes(16)}, {0: bytes(32)}, group, 1)


def test_masked_assignments_look_like_noise() -> None:
    """What the server sees of one client, whose blocks all chose the same codeword, is uniform."""
    group = VectorGroup((Segment(40_000, 4),))
    vector = [np.full(40_000, 3, np.uint8)]
    add_mask(vector, os.urandom(SEED_BYTES), group, sign=1)
    seen = np.bincount(group.reduce(vector)[0], minlength=16)
    assert chisquare(seen).pvalue > 1e-4


def test_every_client_counts_once_whatever_its_weight() -> None:
    """Counts that were weighted would tell who chose what: weights are known, and their sums are seldom alike."""
    ready = prepared(secure("product"), *WORLD, "rounds=1", algorithm="fedavg-rp")
    assert isinstance(ready.experiment.collect.encoding, ProductQuantisation)
    counts: list[np.ndarray] = []
    decode = ProductQuantisation.decode

    def noting(self, layout, total, *others):
        counts.extend(total[: self.indexed(layout)])
        return decode(self, layout, total, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProductQuantisation, "decode", noting)
        list(ready.training.run(ready.federation))
    assert len(counts) == 2
    assert all((each.sum(1) == 4).all() for each in counts)
