"""Transfer learning: an owner without labels gets a model over its own columns, by few rows in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional

import winnow
from command_line import call
from winnow.core import Failure, Task
from winnow.core.message_decoding import UnreadableError
from winnow.core.random_streams import stream
from winnow.learn.metrics import METRICS
from winnow.vertical.cut_messages import encode_cut
from winnow.vertical.cut_protection import CutProtection
from winnow.vertical.keyed_rows import KeyedRows, OwnerColumns, keyed_rows
from winnow.vertical.split_site import ALIGN, FORWARD, KEEP, LEARN
from winnow.vertical.split_workflow import SplitLearning
from winnow.vertical.transfer_party import TransferLabelParty
from winnow.vertical.transfer_plan import TransferPlan
from winnow.vertical.transfer_site import HAND_OVER, RECEIVE, TransferSite
from winnow.vertical.transferred_head import HeadMessage, decode_head, encode_head


def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A bank with 400 labelled people, and a shop with 300 others; 120 are known to both."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(580, 3))
    fraud = np.where(z.sum(axis=1) > 0, "yes", "no")
    bank = pd.DataFrame({"customer": np.arange(400), "income": z[:400, 0], "age": z[:400, 1], "fraud": fraud[:400]})
    shop = pd.DataFrame({"customer": np.arange(280, 580), "spend": z[280:, 0] + z[280:, 1], "visits": z[280:, 2]})
    return bank, shop.sample(frac=1, random_state=1)


def encoder(inputs: int, seed: int, width: int = 4) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, width))


def train(**settings: Any) -> Any:
    bank, shop = frames()
    torch.manual_seed(3)
    wanted: dict[str, Any] = {
        "encoders": {"bank": encoder(2, 1), "shop": encoder(2, 2)},
        "head": nn.Linear(4, 2),
        "labels": "bank",
        "target": "fraud",
        "key": "customer",
        "parts": {"bank": bank, "shop": shop},
        "epochs": 6,
        "batch_size": 8,
        "own_batch_size": 16,
        "learning_rate": 0.01,
    }
    return winnow.transfer(**(wanted | settings))


def test_the_owner_without_labels_predicts_by_its_own_columns_alone() -> None:
    result = train()
    _, shop = frames()
    new = shop[shop["customer"] >= 400]
    truth = np.where(new["spend"] + new["visits"] > 0, "yes", "no")
    assert result.size == 120
    assert (result.predict(new[["spend", "visits"]]) == truth).mean() > 0.9
    assert isinstance(result.model[1], nn.Linear)
    assert [*result.modules] == ["shop", "head"]
    assert "Transfer learning over 120 common rows of bank, shop" in str(result)
    assert "shop: the head at the end" in result.explain()


def test_a_step_is_that_of_the_stated_loss() -> None:
    """Against plain autograd, with SGD: both owners' first batch, and one of rows that only one has."""
    plan = TransferPlan(
        bottoms={"bank": encoder(2, 1), "shop": encoder(2, 2)}, top=nn.Linear(4, 2), labels="bank",
        metric=METRICS["accuracy"], align=0.7, learning_rate=0.5, own_batch_size=3,
    )  # fmt: skip
    torch.manual_seed(0)
    common = KeyedRows(keys=tuple("abcd"), x=torch.randn(4, 2), y=torch.tensor([0, 1, 1, 0]), classes=2)
    others = KeyedRows(keys=tuple("efghi"), x=torch.randn(5, 2), y=torch.tensor([1, 1, 0, 0, 1]), classes=2)
    shown = torch.randn(4, 4)
    party = TransferLabelParty(plan, common, others)
    party.start_epoch(0)
    leaving = party.learn({"shop": shown}, np.arange(4), np.random.default_rng(0))["shop"]

    own, head, there = plan.bottoms["bank"], plan.top, shown.clone().requires_grad_()
    assert common.x is not None
    assert others.x is not None
    assert common.y is not None
    assert others.y is not None
    rows = torch.from_numpy(stream(0, "transfer learning", "own rows", 0).permutation(5)[:3])
    here = own(common.x)
    loss = functional.cross_entropy(head(here), common.y) + functional.cross_entropy(head(there), common.y)
    loss = loss + 0.7 * (there - here.detach()).square().mean()
    loss = loss + functional.cross_entropy(head(own(others.x[rows])), others.y[rows])
    loss.backward()
    assert there.grad is not None
    torch.testing.assert_close(leaving, there.grad)
    moved = {"top": head, "bank": own}
    for name, module in party.modules().items():
        for (key, after), (_, before) in zip(module.named_parameters(), moved[name].named_parameters(), strict=True):
            torch.testing.assert_close(after, before - 0.5 * before.grad, msg=key)


def test_rows_of_the_owner_of_labels_help() -> None:
    """With 100 rows to learn from, the others' labels show in the score: they train the head and what is aligned to."""
    bank, shop = frames()
    few = bank[bank["customer"] >= 280]
    alone, helped = (
        np.mean([train(parts={"bank": held, "shop": shop}, seed=seed, epochs=3).history[-1]["loss"] for seed in (0, 1)])
        for held in (few, bank)
    )
    assert helped < alone


def test_an_interrupted_run_goes_on_and_gives_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(epochs=3)
    epoch = SplitLearning._epoch

    def interrupted(self: SplitLearning, federation: Any) -> Any:
        if self.round == 3:
            raise KeyboardInterrupt
        return epoch(self, federation)

    monkeypatch.setattr(SplitLearning, "_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(epochs=3, out=tmp_path / "run")
    monkeypatch.undo()
    resumed = train(epochs=3, out=tmp_path / "run", resume=True)
    again = train(epochs=3, out=tmp_path / "run", resume=True)
    for other in (resumed, again):
        assert other.history == whole.history
        for key, value in whole.model.state_dict().items():
            assert torch.equal(other.model.state_dict()[key], value)
    page = resumed.report(tmp_path / "report.html").read_text()
    assert "transfer learning" in page
    assert "what classes are called" in page
    run = str(tmp_path / "run")
    assert "shop: the head at the end" in call(capsys, "explain", run).out
    assert "transfer-learning" in call(capsys, "show", run).out
    assert "what classes are called" in Path(call(capsys, "report", run).out.strip()).read_text()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"labels": "agency"}, "encoders: name two owners with their modules; one of them has the labels"),
        ({"encoders": {"bank": nn.Linear(2, 4)}}, "needs a second owner"),
        ({"align": -1.0}, "align is -1"),
        ({"own_batch_size": 0}, "own_batch_size is 0"),
        ({"minimum": 200}, "owners have 120 keys in common; 200 are the least"),
        ({"encoders": {"bank": encoder(2, 1), "shop": encoder(2, 2, width=3)}}, "they must be the same"),
        ({"encoders": {"bank": encoder(3, 1), "shop": encoder(2, 2)}}, "the module of bank does not accept its inputs"),
        ({"encoders": {"bank": encoder(2, 1), "shop": encoder(5, 2)}}, "the module of shop does not accept its inputs"),
        ({"head": nn.Linear(3, 2)}, "do not fit one another"),
        ({"learning_rate": 1e9, "optimiser": "sgd"}, "a smaller learning_rate may help"),
        ({"parts": {"bank": frames()[0], "shop": frames()[1], "mint": frames()[1]}}, "mint has no module"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(winnow.WinnowError) as caught:
        train(**settings)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_regression_is_transferred_too() -> None:
    bank, shop = frames()
    result = train(parts={"bank": bank.assign(fraud=bank["income"]), "shop": shop}, head=nn.Linear(4, 1), metric="rmse")
    assert result.predict(shop[["spend", "visits"]]).shape == (300, 1)


# Noise ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["common", "own"])
def test_another_label_moves_all_that_is_told_by_twice_the_clip_at_most(place: str) -> None:
    """With so little noise that it does not count, and gradients far longer than the clip: gradients, encoder, head."""
    plan = TransferPlan(
        bottoms={"bank": encoder(2, 1), "shop": encoder(2, 2)}, top=nn.Linear(4, 2), labels="bank",
        metric=METRICS["accuracy"], learning_rate=1.0, own_batch_size=8,
        protection=CutProtection(clip=0.01, noise=1e-9),
    )  # fmt: skip
    torch.manual_seed(1)
    x, own_x, shown = 10 * torch.randn(8, 2), 10 * torch.randn(8, 2), 10 * torch.randn(8, 4)
    found = []
    for label in (0, 1):
        y, own_y = torch.tensor([0, 0, 1, 0, 1, 0, 1, 1]), torch.tensor([1, 0, 1, 0, 1, 0, 1, 1])
        (y if place == "common" else own_y)[0] = label
        party = TransferLabelParty(
            plan,
            KeyedRows(keys=tuple("abcdefgh"), x=x, y=y, classes=2),
            KeyedRows(keys=tuple("ijklmnop"), x=own_x, y=own_y, classes=2),
        )
        party.start_epoch(0)
        leaving = party.learn({"shop": shown}, np.arange(8), np.random.default_rng(0))["shop"]
        held = [value.detach().flatten() for module in party.modules().values() for value in module.parameters()]
        found.append(torch.cat([leaving.flatten(), *held]))
    moved = (found[0] - found[1]).norm() * 8
    assert 0.005 < moved <= 0.02 * 1.001


def test_noise_is_accounted_for_and_explained() -> None:
    result = train(epochs=2, clip=1.0, noise=6.0)
    assert result.epsilon == pytest.approx(CutProtection(clip=1.0, noise=6.0).epsilon(2))
    assert "trained with noise" in result.explain()
    assert "loss" not in result.history[-1]


# Liars ----------------------------------------------------------------------------------------------------------------


class Owners:
    """Both owners after they found their keys, to whom a server or the other one may say anything."""

    def __init__(self) -> None:
        bank, shop = frames()
        torch.manual_seed(6)
        self.plan = TransferPlan(
            bottoms={"bank": encoder(2, 1), "shop": encoder(2, 2)}, top=nn.Linear(4, 2), labels="bank", epochs=2,
            metric=METRICS["accuracy"], test=0.5,
        )  # fmt: skip
        parts = (
            keyed_rows(bank, OwnerColumns(key="customer", target="fraud"), "bank"),
            keyed_rows(shop, OwnerColumns(key="customer"), "shop"),
        )
        self.received: list[Any] = []
        self.site = TransferSite(
            self.plan, lambda client: parts[client], lambda client: ("bank", "shop")[client], stream,
            on_received=self.received.append,
        )  # fmt: skip
        common = sorted({*parts[0].keys} & {*parts[1].keys})
        self.states: dict[int, Any] = {}
        for client in (0, 1):
            self.site._found(client, common)
            self.states[client] = self.ask(ALIGN, client).new_client_state

    def ask(self, name: str, client: int, *, messages: Mapping[int, bytes] | None = None, **settings: Any) -> Any:
        told = {"owners": {"bank": 0, "shop": 1}, "epoch": 0, "attempt": 0, "step": 0} | settings
        task = Task(name=name, client=client, round=2, version=1, settings=told, peer_messages=messages or {},
                    client_state=self.states.get(client, {}))  # fmt: skip
        (outcome,) = self.site.handlers()[name]([task], None)
        return outcome

    def head(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.plan.top.state_dict().items()}


def reason(outcome: Any) -> str:
    assert isinstance(outcome, Failure)
    return outcome.reason


def test_a_server_gets_no_head_before_the_end_and_nobody_but_the_other_owner_gets_it() -> None:
    owners = Owners()
    assert "0 of 2 epochs are over" in reason(owners.ask(HAND_OVER, 0))
    assert "has no head" in reason(owners.ask(HAND_OVER, 1))
    assert "receives no head" in reason(owners.ask(RECEIVE, 0))
    assert "client 1 of this job is not bank" in reason(owners.ask(HAND_OVER, 0, owners={"bank": 1, "shop": 0}))
    owners.states[0]["split"]["epochs"] = torch.tensor(2)
    assert {*owners.ask(HAND_OVER, 0).peer_messages} == {1}
    assert not owners.ask(HAND_OVER, 0).payload


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        (lambda head: b"", "truncated"),
        (lambda head: encode_head({"weight": head["weight"]}, True, None), "does not have the parts"),
        (lambda head: encode_head({**head, "more": head["bias"]}, True, None), "does not have the parts"),
        (lambda head: encode_head({**head, "bias": head["bias"][:1]}, True, None), "bytes for numbers of shape"),
        (lambda head: encode_head({**head, "bias": head["bias"] * torch.nan}, True, None), "not finite"),
        (lambda head: encode_head(head, True, ("only one",)), "the head does not fit"),
        (lambda head: encode_head(head, True, ("yes", "n" * 2000)), "too many or too long"),
        (lambda head: msgspec.msgpack.encode({"values": {}}), "Expected `array`"),
    ],
)
def test_a_head_that_is_none_of_the_program_is_refused(lie: Any, line: str) -> None:
    owners = Owners()
    assert line in reason(owners.ask(RECEIVE, 1, messages={0: lie(owners.head())}))
    assert not owners.received, "nothing is written"


def test_a_head_is_read_as_it_was_sent() -> None:
    owners = Owners()
    told, state = decode_head(encode_head(owners.head(), True, ("no", "yes")), owners.plan.top)
    assert isinstance(told, HeadMessage)
    assert told.labels == ("no", "yes")
    for name, value in owners.head().items():
        assert torch.equal(state[name], value)
    assert owners.ask(RECEIVE, 1, messages={0: encode_head(owners.head(), True, ("no", "yes"))}).new_client_state
    assert len(owners.received) == 1
    assert "a message of bank is missing" in reason(owners.ask(RECEIVE, 1))


def test_representations_that_would_break_the_head_are_refused_and_nothing_of_them_is_kept() -> None:
    rows = Owners().plan.batch_size if Owners().plan.batch_size < 60 else 60
    for lie, line in (
        (torch.full((rows, 4), 1e38), "not finite"),
        (torch.zeros(rows, 5), "they must be the same"),
        (torch.zeros(rows - 1, 4), f"not those of {rows} rows"),
    ):
        owners = Owners()
        assert line in reason(owners.ask(LEARN, 0, messages={1: encode_cut(lie)}))
        assert "a step of this epoch failed" in reason(owners.ask(LEARN, 0, step=1, messages={1: encode_cut(lie)}))
        assert "the epoch is not complete" in reason(owners.ask(KEEP, 0))


def test_a_gradient_of_another_shape_is_refused() -> None:
    owners = Owners()
    assert not isinstance(owners.ask(FORWARD, 1), Failure)
    wrong = encode_cut(torch.zeros(60, 3))
    assert "shape" in reason(owners.ask(FORWARD, 1, step=1, messages={0: wrong}))
    with pytest.raises(UnreadableError):
        decode_head(b"\xff" * 10, nn.Linear(4, 2))
