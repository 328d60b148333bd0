"""Split learning: bottoms at owners of features, the top with the labels."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dp_accounting
import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import winnow
from winnow.core import Failure, Reply, Task
from winnow.core.random_streams import stream
from winnow.learn.metrics import METRICS
from winnow.vertical.cut_messages import MAX_BYTES, encode_cut
from winnow.vertical.cut_protection import CutProtection
from winnow.vertical.keyed_rows import KeyedRows, OwnerColumns, keyed_rows
from winnow.vertical.label_party import LabelParty
from winnow.vertical.split_plan import SplitPlan
from winnow.vertical.split_site import ALIGN, FORWARD, KEEP, LEARN, SplitSite
from winnow.vertical.split_workflow import SplitLearning


def bottom(columns: int = 32, width: int = 16, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(columns, width), nn.ReLU())


class Top(nn.Module):
    """Two halves of an image meet."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.layers = nn.Sequential(nn.Linear(width, 24), nn.ReLU(), nn.Linear(24, classes))

    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat(parts, dim=1))


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = (values[:700] for values in load_digits(return_X_y=True))
    return np.array([f"p{row:04}" for row in range(len(y))]), (x / 16).astype(np.float32), y


def halves() -> dict[str, Any]:
    keys, x, y = digits()
    return {"left": (keys, x[:, :32]), "right": (keys, x[:, 32:]), "registry": (keys, y)}


def train(**settings: Any) -> Any:
    wanted: dict[str, Any] = {
        "bottoms": {"left": bottom(seed=1), "right": bottom(seed=2)},
        "top": Top(),
        "labels": "registry",
        "parts": halves(),
        "epochs": 5,
        "batch_size": 64,
        "learning_rate": 0.1,
        "momentum": 0.9,
    }
    return winnow.split(**(wanted | settings))


def scaled(x: np.ndarray) -> torch.Tensor:
    """Each owner brings its own columns to mean 0 and deviation 1."""
    exact = x.astype(np.float64)
    expected = (exact - exact.mean(0)) / np.where(exact.std(0) > 0, exact.std(0), 1)
    rows = keyed_rows((np.arange(len(x)), x), OwnerColumns(key="key"), "x")
    assert rows.x is not None
    np.testing.assert_allclose(rows.x, expected, atol=1e-5)
    return rows.x


def batches(count: int, epochs: int, size: int = 64) -> list[torch.Tensor]:
    """The rows of every step: the order that all parties derive from the seed."""
    rows = np.sort(stream(0, "split learning", "test").permutation(count)[round(0.1 * count) :])
    return [
        torch.from_numpy(shuffled[begin : begin + size])
        for epoch in range(epochs)
        for shuffled in [stream(0, "split learning", "epoch", epoch).permutation(rows)]
        for begin in range(0, len(rows), size)
    ]


def centrally(epochs: int) -> list[nn.Module]:
    """The same model in one place: plain SGD over the same batches, written out."""
    modules = [bottom(seed=1), bottom(seed=2), Top()]
    optimiser = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.1, momentum=0.9)
    _, x, y = digits()
    left, right, labels = scaled(x[:, :32]), scaled(x[:, 32:]), torch.from_numpy(y)
    for batch in batches(len(y), epochs):
        optimiser.zero_grad()
        outputs = modules[2](modules[0](left[batch]), modules[1](right[batch]))
        functional.cross_entropy(outputs, labels[batch]).backward()
        optimiser.step()
    return modules


def assert_same(result: Any, names: tuple[str, ...], modules: list[nn.Module], atol: float = 1e-6) -> None:
    for name, module in zip(names, modules, strict=True):
        for parameter, value in module.named_parameters():
            found = result.modules[name].get_parameter(parameter).detach()
            torch.testing.assert_close(found, value.detach(), rtol=0, atol=atol)


def test_updates_are_those_of_central_training() -> None:
    result = train()
    assert_same(result, ("left", "right", "top"), centrally(epochs=5))
    assert result.score > 0.85
    assert result.size == 700
    _, x, y = digits()
    rows = {"left": x[:50, :32], "right": x[:50, 32:]}
    assert (result.predict(rows) == y[:50]).mean() > 0.85
    assert "Labels inferred from gradients" in str(result)


def test_where_two_batches_are_in_flight_bottoms_learn_one_step_late() -> None:
    """Against a loop in which bottoms get every gradient a step later, at the parameters of their forward pass."""
    result = train(pipeline=2, epochs=1, momentum=0.0, bottoms={"left": bottom(seed=1)}, top=Top(width=16),
                   parts={name: part for name, part in halves().items() if name != "right"})  # fmt: skip
    _, x, y = digits()
    left, labels, lower, upper = scaled(x[:, :32]), torch.from_numpy(y), bottom(seed=1), Top(width=16)
    late: list[tuple[torch.Tensor, ...]] = []
    for batch in batches(len(y), 1):
        parameters = {name: value.detach().clone().requires_grad_() for name, value in lower.named_parameters()}
        shown = torch.func.functional_call(lower, parameters, (left[batch],))
        if late:  # the gradient of the batch before, which was learnt from meanwhile
            for value, slope in zip(lower.parameters(), late.pop(), strict=True):
                value.data -= 0.1 * slope
        loss = functional.cross_entropy(upper(shown), labels[batch])
        slopes = torch.autograd.grad(loss, [*parameters.values(), *upper.parameters()])
        late.append(slopes[: len(parameters)])
        for value, slope in zip(upper.parameters(), slopes[len(parameters) :], strict=True):
            value.data -= 0.1 * slope
    for value, slope in zip(lower.parameters(), late.pop(), strict=True):
        value.data -= 0.1 * slope
    assert_same(result, ("left", "top"), [lower, upper])


def test_in_the_u_shape_the_server_trains_the_middle() -> None:
    """One owner keeps features and labels; the server has most of the model, and neither."""
    keys, x, y = digits()
    torch.manual_seed(3)
    middle, head = nn.Sequential(nn.Linear(16, 32), nn.ReLU()), nn.Linear(32, 10)
    copies = [bottom(64, seed=1), nn.Sequential(nn.Linear(16, 32), nn.ReLU()), nn.Linear(32, 10)]
    copies[1].load_state_dict(middle.state_dict())
    copies[2].load_state_dict(head.state_dict())
    result = winnow.split(bottoms={"clinic": bottom(64, seed=1)}, middle=middle, top=head, labels="clinic",
                          parts={"clinic": (keys, x, y)}, epochs=1)  # fmt: skip
    features, labels = scaled(x), torch.from_numpy(y)
    optimiser = torch.optim.SGD([p for m in copies for p in m.parameters()], lr=0.1)
    for batch in batches(len(y), 1):
        optimiser.zero_grad()
        functional.cross_entropy(copies[2](copies[1](copies[0](features[batch]))), labels[batch]).backward()
        optimiser.step()
    assert_same(result, ("clinic", "middle", "top"), copies)


def frames(rows: int = 240) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A bank and an insurer, with keys in different orders and few more each than they have in common."""
    rng = np.random.default_rng(0)
    income, age = rng.normal(size=rows), rng.normal(size=rows)
    fraud = np.where(income + age + rng.normal(scale=0.3, size=rows) > 0, "yes", "no")
    bank = pd.DataFrame({"customer": np.arange(rows), "income": income, "town": rng.choice(["a", "b"], rows)})
    insurer = pd.DataFrame({"customer": np.arange(rows) + 20, "age": age, "fraud": fraud})
    insurer.loc[:, ["age", "fraud"]] = insurer[["age", "fraud"]].shift(-20)  # the same people in both tables
    return bank.sample(frac=1, random_state=1), insurer.iloc[:-20].sample(frac=1, random_state=2)


class TwoTowers(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layer = nn.Linear(width, 1)

    def forward(self, bank: torch.Tensor, insurer: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([bank, insurer], dim=1))


def of_frames(**settings: Any) -> Any:
    bank, insurer = frames()
    torch.manual_seed(5)
    wanted: dict[str, Any] = {
        "bottoms": {"bank": nn.Linear(4, 4), "insurer": nn.Linear(1, 2)},
        "top": TwoTowers(6),
        "labels": "insurer",
        "target": "fraud",
        "key": "customer",
        "parts": {"bank": bank, "insurer": insurer},
        "epochs": 4,
        "metric": "auc",
    }
    return winnow.split(**(wanted | settings))


def test_tables_with_text_are_matched_by_key_and_the_labels_owner_may_have_features() -> None:
    result = of_frames()
    assert result.size == 220
    assert result.score > 0.9
    bank, insurer = frames()
    joined = bank.merge(insurer, on="customer")
    predicted = result.predict({"bank": joined[["income", "town"]], "insurer": joined[["age"]]})
    assert (predicted == joined["fraud"]).mean() > 0.85


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"minimum": 1000}, "owners have 220 keys in common; 1000 are the least"),
        ({"labels": "agency"}, "parts: nothing is given for agency"),
        ({"target": "Fraud"}, "has no column 'Fraud' (named as labels)"),
        ({"metric": "rmse"}, "metric 'rmse' is for regression, and this is a classification"),
        ({"metric": "f2"}, "unknown metric 'f2'"),
        ({"noise": 1.0}, "noise needs clip"),
        ({"epochs": 0}, "epochs is 0"),
        ({"test": 1.0}, "test is 1"),
        ({"top": nn.Linear(3, 1)}, "the module of insurer (top) does not accept its inputs"),
        ({"learning_rate": 1e30}, "a smaller learning_rate may help"),
        ({"parts": {"bank": 3, "insurer": 4}}, "pass a frame, a file, or (keys, array), not int"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(winnow.WinnowError) as caught:
        of_frames(**settings)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_row_has_a_key_of_its_own() -> None:
    bank, insurer = frames()
    twice = pd.concat([bank, bank.iloc[:1]])
    with pytest.raises(winnow.WinnowError, match="data rows 1 and 241 have the same key; keep one row a key"):
        of_frames(parts={"bank": twice, "insurer": insurer})
    blank = bank.assign(customer=["", *map(str, range(239))])
    with pytest.raises(winnow.WinnowError, match="the key of data row 1 is empty"):
        of_frames(parts={"bank": blank, "insurer": insurer})
    others = bank.assign(customer=bank["customer"] + 5000)
    with pytest.raises(winnow.WinnowError, match="owners have 0 keys in common"):
        of_frames(parts={"bank": others, "insurer": insurer})


def test_an_interrupted_run_goes_on_and_gives_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of_frames(momentum=0.9)
    epoch = SplitLearning._epoch

    def interrupted(self: SplitLearning, federation: Any) -> Any:
        if self.round == 3:
            raise KeyboardInterrupt
        return epoch(self, federation)

    monkeypatch.setattr(SplitLearning, "_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        of_frames(momentum=0.9, out=tmp_path / "run")
    monkeypatch.undo()
    resumed = of_frames(momentum=0.9, out=tmp_path / "run", resume=True)
    assert resumed.history == whole.history
    for name, module in whole.modules.items():
        for key, value in module.state_dict().items():
            assert torch.equal(resumed.modules[name].state_dict()[key], value)
    with pytest.raises(winnow.WinnowError, match="contains a run with other rows, modules or settings"):
        of_frames(momentum=0.5, out=tmp_path / "run", resume=True)
    page = resumed.report(tmp_path / "report.html")
    assert "split learning" in page.read_text()


# What leaves the owner of the labels ----------------------------------------------------------------------------------


def test_labels_are_inferred_from_gradients_and_noise_ends_that() -> None:
    open_gradients = of_frames(epochs=1).history[0]
    assert open_gradients["labels.by_direction"] > open_gradients["labels.guessed"] + 0.2
    noisy = of_frames(epochs=1, clip=0.1, noise=20.0).history[0]
    assert noisy["labels.by_direction"] < noisy["labels.guessed"] + 0.1
    assert "loss" not in noisy  # of labels that are trained on nothing is told


def test_max_norm_hides_norms() -> None:
    plain, hidden = (
        of_frames(epochs=1, norms=norms).history[0]["labels.norm_auc"] for norms in ("as they are", "max-norm")
    )
    assert 0.5 <= hidden <= plain + 0.02


def test_epsilon_is_that_of_the_gaussian_mechanism_at_half_the_noise_over_epochs() -> None:
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(3.0), 4)
    assert of_frames(clip=1.0, noise=6.0).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01)


def test_another_label_moves_what_leaves_and_the_top_by_twice_the_clip_at_most() -> None:
    """With so little noise that it does not count. Some rows have gradients longer than the clip for both labels."""
    moves = [_moved_by_another_label(seed) for seed in range(8)]
    assert max(moves) <= 0.02 * 1.001
    assert max(moves) > 0.015, "the bound is nearly reached"


def _moved_by_another_label(seed: int) -> float:
    """Change the first label and return how far all that depends on it moves."""
    torch.manual_seed(seed)
    plan = SplitPlan(
        bottoms={"bank": nn.Linear(4, 4)}, top=nn.Linear(4, 2), labels="insurer", metric=METRICS["accuracy"],
        learning_rate=1.0, protection=CutProtection(clip=0.01, noise=1e-9),
    )  # fmt: skip
    shown, batch = {"bank": 100 * torch.randn(8, 4)}, np.arange(8)
    found = []
    for label in (0, 1):
        rows = KeyedRows(keys=tuple("abcdefgh"), y=torch.tensor([label, 0, 1, 0, 1, 0, 1, 1]), classes=2)
        party = LabelParty(plan, rows)
        party.start_epoch(0)
        leaving = party.learn(shown, batch, np.random.default_rng(0))["bank"]
        top = torch.cat([value.detach().flatten() for value in party.modules()["top"].parameters()])
        found.append((leaving.flatten(), top))
    assert torch.equal(found[0][0][4:], found[1][0][4:]), "what leaves for other rows does not change"
    return float(torch.cat([one - other for one, other in zip(*found, strict=True)]).norm() * 8)


# Liars ----------------------------------------------------------------------------------------------------------------


class Owners:
    """Two owners after they found their keys, to whom a server may say anything."""

    def __init__(self, **settings: Any) -> None:
        bank, insurer = frames()
        torch.manual_seed(6)
        self.plan = SplitPlan(
            bottoms={"bank": nn.Linear(4, 4)}, top=nn.Linear(4, 2), labels="insurer",
            metric=METRICS["accuracy"], **settings,
        )  # fmt: skip
        columns = OwnerColumns(key="customer", target="fraud", has_features=False)
        parts = (keyed_rows(insurer, columns, "insurer"), keyed_rows(bank, OwnerColumns(key="customer"), "bank"))
        names = ("insurer", "bank")
        self.site = SplitSite(self.plan, lambda client: parts[client], lambda client: names[client], stream)
        common = sorted({*parts[0].keys} & {*parts[1].keys})
        self.states: dict[int, Any] = {}
        for client in (0, 1):
            self.site._found(client, common)
            self.states[client] = self.ask(ALIGN, client).new_client_state

    def ask(self, name: str, client: int, *, messages: Mapping[int, bytes] | None = None, **settings: Any) -> Any:
        told = {"owners": {"insurer": 0, "bank": 1}, "epoch": 0, "attempt": 0, "step": 0} | settings
        task = Task(name=name, client=client, round=2, version=1, settings=told, peer_messages=messages or {},
                    client_state=self.states.get(client, {}))  # fmt: skip
        (outcome,) = self.site.handlers()[name]([task], None)
        return outcome


def reason(outcome: Any) -> str:
    assert isinstance(outcome, Failure)
    return outcome.reason


def test_a_server_cannot_have_rows_twice_or_at_will() -> None:
    owners = Owners()
    shown = owners.ask(FORWARD, 1).peer_messages[0]
    assert "step 0 does not follow" in reason(owners.ask(FORWARD, 1))
    assert "step 5 does not follow" in reason(owners.ask(FORWARD, 1, step=5))
    assert "a gradient of an earlier batch is missing" in reason(owners.ask(FORWARD, 1, step=1))
    answer = owners.ask(LEARN, 0, messages={1: shown})
    assert {*answer.peer_messages} == {1}
    assert "step 0 does not follow" in reason(owners.ask(LEARN, 0, messages={1: shown}))
    assert "each with 3 attempts" in reason(owners.ask(FORWARD, 1, attempt=3))
    assert "has 5 epochs" in reason(owners.ask(FORWARD, 1, epoch=5)), "each would count once more against ε"
    assert "the epoch is not under way" in reason(owners.ask(FORWARD, 1, epoch=1, step=1))
    assert "nothing to learn" in reason(Owners().ask(LEARN, 1))
    assert "the epoch is not complete" in reason(owners.ask(KEEP, 0))
    assert "the epoch is not complete" in reason(owners.ask(KEEP, 1))


def test_activations_go_to_nobody_but_the_owner_of_the_labels() -> None:
    owners = Owners()
    assert "client 1 of this job is not insurer" in reason(owners.ask(FORWARD, 1, owners={"insurer": 1, "bank": 0}))
    assert "does not name the owners" in reason(owners.ask(FORWARD, 1, owners={"insurer": 0}))
    assert "cannot be read" in reason(owners.ask(FORWARD, 1, owners="insurer"))


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda shape: b"no message", ""),
        (lambda shape: encode_cut(torch.full(shape, torch.nan)), "not finite"),
        (lambda shape: encode_cut(torch.zeros(3, *shape[1:])), "not those of 64 rows"),
        (lambda shape: msgspec.msgpack.encode([[64, 2**40], b"0000"]), "not those of 64 rows"),
        (lambda shape: msgspec.msgpack.encode([[-64, -4], b"0" * 1024]), "not those of 64 rows"),
        (lambda shape: bytes(MAX_BYTES + 1), "are the most"),
    ],
)
def test_another_owner_s_numbers_are_checked(made: Any, line: str) -> None:
    owners = Owners()
    assert line in reason(owners.ask(LEARN, 0, messages={1: made((64, 4))}))
    owners = Owners()
    owners.ask(FORWARD, 1)
    assert line in reason(owners.ask(FORWARD, 1, step=1, messages={0: made((64, 4))}))


def test_a_gradient_has_the_shape_of_what_was_shown() -> None:
    owners = Owners()
    owners.ask(FORWARD, 1)
    wrong = encode_cut(torch.zeros(64, 5))
    assert "does not have the shape" in reason(owners.ask(FORWARD, 1, step=1, messages={0: wrong}))


def test_with_noise_an_epoch_begins_as_often_as_its_owner_records(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = Owners(protection=CutProtection(clip=1.0, noise=1.0))
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(owners.site, "_begin_epoch", lambda *told: (asked.append(told), told[2] == 0)[1])
    shown = owners.ask(FORWARD, 1).peer_messages[0]
    assert isinstance(owners.ask(LEARN, 0, messages={1: shown}), Reply)
    assert "have been shown before" in reason(owners.ask(LEARN, 0, attempt=1, messages={1: shown}))
    assert asked == [(0, 0, 0), (0, 0, 1)]


def test_an_epoch_that_an_owner_lost_begins_again_with_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of_frames(epochs=2)
    lost: list[int] = []
    forward = SplitSite._forward

    def forgetful(self: SplitSite, task: Task) -> Reply:
        told: Any = task.settings
        if told["epoch"] == 1 and told["step"] == 3 and not lost:
            lost.append(1)
            self._sessions.clear()
        return forward(self, task)

    monkeypatch.setattr(SplitSite, "_forward", forgetful)
    again = of_frames(epochs=2)
    assert lost
    assert again.history == whole.history
