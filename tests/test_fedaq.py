"""FedAC, FedAQ, FedPAQ and FedCOMGATE against calculations by hand, and against what they reduce to."""

import tomllib

import numpy as np
import pytest
import torch

from one_point import COPIES, ByHand, played, vector
from one_point import ready as linear
from test_compress_filter import tapped
from winnow.config.resolve import experiment_from_table, resolve, to_toml
from winnow.core import ConfigError, stream
from winnow.experiment.build_simulation import PreparedRun
from winnow.learn.accelerated_sgd import AcceleratedSgd
from winnow.learn.stack import ModelState
from winnow.papers.fedaq.conditions import WHOLE, Conditions, quantisation_variance
from winnow.privacy.compress import QSGD
from world import BASE, experiment, prepared

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
UNFILTERED = "filters=[]"
ALL = "select.count=8"


def iterate(ready: PreparedRun) -> np.ndarray:
    """w as the server has it."""
    arrays = ready.training.snapshot().arrays
    return vector({name: arrays[f"server/{name}"] for name in ready.training.model})


def trained(*sets: str, algorithm: str) -> ModelState:
    still = [] if algorithm in ("fedac", "fedaq") else ["local.momentum=0.0"]  # whose optimiser has none
    ready = prepared(*still, *sets, algorithm=algorithm)
    list(ready.training.run(ready.federation))
    return ready.training.model


def assert_close(one: ModelState, other: ModelState, **tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


@pytest.mark.parametrize(
    ("settings", "alpha", "beta", "gamma"),
    [
        (("local.mu=0.3", "local.tau=3"), 1 / (0.3 * np.sqrt(0.02 / 0.9)), None, np.sqrt(0.02 / 0.9)),
        (
            ("local.mu=0.3", "local.tau=3", "local.conditions=II"),
            (a := 3 / (2 * 0.3 * np.sqrt(0.02 / 0.9)) - 0.5),
            (2 * a**2 - 1) / (a - 1),
            np.sqrt(0.02 / 0.9),
        ),
        (("local.alpha=3.5", "local.beta=2.0", "local.gamma=0.05", "local.decay=0.9"), 3.5, 2.0, 0.05),
        (("local.mu=40.0", "local.steps=4"), 1 / (40 * 0.02), None, 0.02),
    ],
    ids=["I", "II", "given, with decay", "gamma is eta"],
)
def test_algorithm_7(settings: tuple[str, ...], alpha: float, beta: float | None, gamma: float) -> None:
    """Rounds of clients that take different numbers of steps, three of four; the third case decays both rates."""
    ready = linear("fedac", *settings)
    local, beta = ready.experiment.local, alpha + 1 if beta is None else beta
    hand, w, ag = ByHand.of(ready), vector(ready.training.model), vector(ready.training.model)
    for number, (clients, _, model) in enumerate(played(ready)):
        shrunk = local.decay**number
        new_w, new_ag = [], []
        for k in clients:
            own_w, own_ag = w, ag
            for _ in range(local.steps or hand.steps(k)):
                md = own_w / beta + (1 - 1 / beta) * own_ag
                g = hand.gradient(k, md)
                own_ag, own_w = md - hand.rate * shrunk * g, (1 - 1 / alpha) * own_w + md / alpha - gamma * shrunk * g
            new_w.append(own_w - w)
            new_ag.append(own_ag - ag)
        w, ag = w + np.mean(new_w, axis=0), ag + np.mean(new_ag, axis=0)
        np.testing.assert_allclose(model, ag, **CLOSE)
    np.testing.assert_allclose(iterate(ready), w, **CLOSE)
    assert np.allclose(w, ag, atol=1e-3) == (gamma == hand.rate)  # equal steps from one start never part


@pytest.mark.parametrize("execution", ["native", "stacked", "loop"])
def test_without_coupling_it_is_federated_averaging(execution: str) -> None:
    """β = 1 and γ = η: all three sequences are one."""
    sets = (f"engine.execution={execution}", "local.weight_decay=0.01")
    plain = trained(*sets, "aggregate.weights=uniform", algorithm="fedavg-rp")
    same = trained(*sets, "local.alpha=3.0", "local.beta=1.0", "local.gamma=0.1", algorithm="fedac")
    assert_close(same, plain)


def test_fedaq_with_whole_numbers_is_fedac_and_fedpaq_is_fedavg() -> None:
    exact = "filters=[{name = 'compress', quantise = 'float32'}]"
    assert_close(trained(exact, algorithm="fedaq"), trained(algorithm="fedac"))
    assert_close(trained(exact, algorithm="fedpaq"), trained("aggregate.weights=uniform", algorithm="fedavg-rp"))
    coarse = trained(algorithm="fedaq")
    fine = trained(algorithm="fedac")
    assert any(not torch.equal(coarse[name], fine[name]) for name in fine)


def test_fedcomgate_is_scaffold_where_all_take_part() -> None:
    sets = (ALL, "rounds=5", "local.momentum=0.5")
    assert_close(
        trained(*sets, UNFILTERED, algorithm="fedcomgate"), trained(*sets, algorithm="scaffold"), rtol=1e-4, atol=2e-5
    )


def test_fedcomgate_corrects_by_the_changes_that_were_sent_and_only_after_a_round_in_a_row() -> None:
    """A client that missed a round does not know its mean, and keeps its correction."""
    ready = linear("fedcomgate", UNFILTERED, "rounds=6")
    hand, theta = ByHand.of(ready), vector(ready.training.model)
    correction, reached = np.zeros((len(COPIES), 4)), {}
    skipped = 0
    for number, (clients, _, model) in enumerate(played(ready)):
        own = {}
        for k in clients:
            before, end = reached.get(k, (None, theta))
            if before == number - 1:
                correction[k] += (theta - end) / (hand.rate * hand.steps(k))
            skipped += before is not None and before < number - 1
            own[k] = hand.train(k, theta, gradient_offset=-correction[k])
            reached[k] = (number, own[k])
        theta = np.mean(list(own.values()), axis=0)
        np.testing.assert_allclose(model, theta, **CLOSE)
    assert skipped
    assert np.abs(correction).max() > 0.1


@pytest.mark.parametrize("quantiser", [QSGD(levels=127, bucket=64), QSGD(levels=7, bucket=64), WHOLE])
def test_the_quantisers_keep_assumption_1(quantiser: QSGD) -> None:
    """E Q(x) = x and E‖Q(x) − x‖² ≤ q·‖x‖², over 10⁴ draws: copies of x in buckets of their own."""
    draws, x = 10_000, np.random.default_rng(0).standard_t(3, 64).astype(np.float32)
    alone = quantiser.model_copy(update={"bucket": 64})
    sizes = np.array([64 * draws])
    data = alone.write(np.tile(x, draws), sizes, stream(0, "draws"))
    read = alone.read(data, sizes).astype(np.float64).reshape(draws, 64)
    error = np.abs(read.mean(0) - x)
    assert (error <= 4 * read.std(0) / np.sqrt(draws) + 1e-7).all()
    q = quantisation_variance(alone, 64)
    assert 0 < ((read - x) ** 2).sum(1).mean() <= q * (x.astype(np.float64) ** 2).sum()


WIDE = ("rounds=1", "model.hidden=[400, 100]")


def reply_bytes(algorithm: str, levels: int) -> tuple[float, int]:
    """What a client's reply weighs on the wire, and the parameters of the model."""
    code = f"filters=[{{name = 'compress', quantise = {{name = 'qsgd', levels = {levels}}}}}]"
    ready = prepared(*WIDE, code, algorithm=algorithm)
    tap, federation = tapped(ready)
    list(ready.training.run(federation))
    return sum(map(len, tap.packets)) / len(tap.uploads), sum(t.numel() for t in ready.training.model.values())


def test_bits_are_the_paper_s() -> None:
    (aq, parameters), (paq, _) = reply_bytes("fedaq", 7), reply_bytes("fedpaq", 127)
    assert aq == pytest.approx(paq, rel=0.02)
    for found, bits, parts in ((aq, 4, 2), (paq, 8, 1)):
        norms = parts * 4 * -(-parameters // 512)
        assert found == pytest.approx(parts * bits * parameters / 8 + norms, rel=0.01)


def test_effective_steps_are_those_of_unit_gradients() -> None:
    local = AcceleratedSgd(learning_rate=0.02, mu=0.5, steps=7)
    parameters, slots = [torch.zeros(1, 3)], local.initial_state([torch.zeros(1, 3)])
    for number in range(1, 8):
        local.step(parameters, [torch.ones(1, 3)], slots, number=number, rate=0.02)
    local.finish(parameters, slots)
    gone = -parameters[0][0, 0].item() / 0.02
    assert local.effective_steps(torch.tensor([0, 7])).tolist() == pytest.approx([0.0, gone], rel=1e-5)
    assert gone > 7


def test_the_paper_s_conditions_for_its_own_logistic_regression() -> None:
    """The numbers of γ, α and β, and by how much (53) and (45) are missed with q = 0.346."""
    for conditions, missed in (("I", (338, 8_400)), ("II", (1_006, 25_000))):
        local = resolve("fedaq-logistic", algorithm="fedaq", sets=(f"local.conditions={conditions}",)).local
        assert isinstance(local, AcceleratedSgd)
        assert local.coupling.gamma == pytest.approx(0.0316, rel=1e-2)
        for smoothness, factor in zip((25.0, 123.0), missed, strict=True):
            found = Conditions(local=local, smoothness=smoothness, clients=16, q=0.346)
            assert found.quantised == pytest.approx(factor, rel=0.05)
        if conditions == "I":
            assert (local.coupling.alpha, local.coupling.beta) == pytest.approx((316, 317), rel=1e-2)
            assert Conditions(local=local, smoothness=123.0, clients=16, q=0.0).quantised < 1


class TestConfiguration:
    def test_an_algorithm_keeps_its_optimiser_and_filters_in_a_file_that_was_not_written_for_it(self) -> None:
        clipped = {**BASE, "filters": [{"name": "clip", "norm": 1.0}]}
        found = resolve(clipped, algorithm="fedaq")
        assert [each.name for each in found.filters] == ["clip", "compress"]
        assert (found.local.name, found.local.epochs, found.local.learning_rate) == ("accelerated", 2, 0.1)
        own = {**BASE, "filters": [{"name": "compress", "quantise": "float16"}]}
        assert [each.quantise.name for each in resolve(own, algorithm="fedpaq").filters] == ["float16"]

    def test_a_file_written_for_it_says_itself(self) -> None:
        written = experiment(UNFILTERED, algorithm="fedaq")
        table = tomllib.loads(to_toml(written))
        assert resolve(table).filters == experiment_from_table(table, "here").filters == ()

    @pytest.mark.parametrize(
        ("algorithm", "sets", "said"),
        [
            ("fedac", ("local.name=sgd",), "requires local.name = 'accelerated'; it is 'sgd'"),
            ("fedac", ("server.name=replace",), "requires server.name = 'accelerated'"),
            ("fedac", ("local.alpha=2.0",), "set alpha, beta and gamma together"),
            ("fedac", ("local.mu=11.0",), "conditions I need γ·μ ≤ 1, and it is 1.1; lower mu or learning_rate"),
            ("fedac", ("local.mu=9.0", "local.conditions=II"), "conditions II need γ·μ ≤ 0.75"),
            ("fedcomgate", ("local.name=adam",), "requires local.name = 'sgd'"),
            ("fedaq", ("collect.name=secure",), "compress sends packets, which cannot be summed"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, algorithm: str, sets: tuple[str, ...], said: str) -> None:
        with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace(".", r"\.")):
            experiment(*sets, algorithm=algorithm)

    def test_accelerated_steps_go_with_other_algorithms(self) -> None:
        for algorithm in ("fedprox", "fednova", "ditto", "fedrep", "feddyn"):
            ready = prepared("local.name=accelerated", "rounds=2", algorithm=algorithm)
            list(ready.training.run(ready.federation))
            assert all(torch.isfinite(tensor).all() for tensor in ready.training.model.values())
