"""Compression as a filter: what really crosses, what it costs the simulated devices, what is fed back."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from winnow.core import ConfigError, Reply, RoundFinished
from winnow.learn.collect import PlainCollect
from winnow.learn.update_filters import FilteredFederation
from winnow.privacy.compress.compress_filter import ERROR_FEEDBACK, PACKET
from world import experiment, prepared

TOP = 'filters=[{name = "compress", sparsify = {name = "top-k", fraction = 0.1}}]'
QSGD = 'filters=[{name = "compress", quantise = {name = "qsgd", levels = 7, bucket = 64}}]'


class Tapped:
    """A federation that notes the packets which cross it, and may spoil them."""

    def __init__(self, federation, spoil=lambda packet: packet) -> None:
        self._federation, self._spoil = federation, spoil
        self.packets: list[np.ndarray] = []
        self.uploads: list[int] = []

    def __getattr__(self, name: str):
        return getattr(self._federation, name)

    def dispatch(self, tasks, *until):
        tasks = list(tasks)
        self.uploads += [task.work.upload_bytes for task in tasks if task.name == "train"]
        return _TappedExchange(self._federation.dispatch(tasks, *until), self)

    def passed(self, outcome):
        if not isinstance(outcome, Reply) or outcome.task.name != "train":
            return outcome
        payload = dict(outcome.payload)
        for part, arrays in payload.items():
            if PACKET in arrays:
                self.packets.append(arrays[PACKET])
                payload[part] = {PACKET: self._spoil(arrays[PACKET])}
        return replace(outcome, payload=payload)


class _TappedExchange:
    def __init__(self, exchange, tap: Tapped) -> None:
        self._exchange, self._tap = exchange, tap

    def __getattr__(self, name: str):
        return getattr(self._exchange, name)

    def __iter__(self):
        return map(self._tap.passed, self._exchange)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self._exchange.close()


def tapped(ready, spoil=lambda packet: packet) -> tuple[Tapped, FilteredFederation]:
    tap = Tapped(ready.simulation, spoil)
    return tap, FilteredFederation(tap, ready.experiment.filters)


@pytest.mark.parametrize("option", [TOP, QSGD])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_devices_are_charged_for_what_really_crosses(option: str, algorithm: str) -> None:
    ready = prepared(option, algorithm=algorithm)
    tap, federation = tapped(ready)
    rounds = [event for event in ready.training.run(federation) if isinstance(event, RoundFinished)]
    parts = 2 if algorithm == "scaffold" else 1
    assert len(tap.packets) == parts * len(tap.uploads) == parts * 12
    assert {len(packet) * parts for packet in tap.packets} == set(tap.uploads)
    plain = prepared(algorithm=algorithm)
    usual = [event for event in plain.training.run(plain.federation) if isinstance(event, RoundFinished)]
    assert all(a.cost.transfer_seconds < b.cost.transfer_seconds for a, b in zip(rounds, usual, strict=True))


def test_a_stated_message_size_shrinks_alike() -> None:
    """Where the fleet says what a model weighs, a compressed one weighs its share of that."""
    ready = prepared(QSGD, "fleet.message_mb=2.0", algorithm="fedavg")
    tap, federation = tapped(ready)
    list(ready.training.run(federation))
    parameters = sum(tensor.nbytes for tensor in ready.training.model.values())
    assert set(tap.uploads) == {round(2e6 * len(tap.packets[0]) / parameters)}


def test_excluded_variables_cost_a_bit() -> None:
    sizes = []
    for exclude in ("", '{name = "exclude", variables = ["*.weight"]}, '):
        ready = prepared(f'filters=[{exclude}{{name = "compress"}}]', "rounds=1", algorithm="fedavg")
        tap, federation = tapped(ready)
        list(ready.training.run(federation))
        assert {len(packet) for packet in tap.packets} == set(tap.uploads)
        sizes.append(len(tap.packets[0]))
    assert sizes == [22 + 1 + 4 * (5 * 12 + 12 + 12 * 3 + 3), 22 + 1 + 4 * (12 + 3)]


def test_uncompressed_numbers_arrive_as_they_were_trained() -> None:
    through, plain = (prepared(*options, "rounds=1", algorithm="fedavg") for options in (['filters=["compress"]'], []))
    list(through.training.run(through.federation)), list(plain.training.run(plain.federation))
    for name, tensor in plain.training.model.items():
        torch.testing.assert_close(through.training.model[name], tensor, rtol=0, atol=1e-6)


SPOILT = {
    "cut": lambda packet: packet[:-1],
    "longer": lambda packet: np.append(packet, np.uint8(0)),
    "empty": lambda packet: packet[:0],
    "not bytes": lambda packet: packet.astype(np.float32),
    "a table": lambda packet: packet[None],
    "another version": lambda packet: np.concatenate([packet[:4], [np.uint8(9)], packet[5:]]),
    "different settings": lambda packet: np.concatenate([packet[:14], packet[14:22] ^ np.uint8(1), packet[22:]]),
    "another count": lambda packet: np.concatenate([packet[:6], packet[6:7] + np.uint8(1), packet[7:]]),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_a_hostile_packet_is_refused_in_one_line_and_the_run_goes_on(spoil) -> None:
    ready = prepared(TOP, "rounds=2", algorithm="fedavg")
    _, federation = tapped(ready, spoil)
    before = ready.training.model
    events = list(ready.training.run(federation))
    reasons = [event.reason for event in events if event.kind == "rejected"]
    assert len(reasons) == 6
    assert all(reason.startswith("failed (sending its update): invalid packet: ") for reason in reasons)
    assert all("\n" not in reason for reason in reasons)
    assert ready.training.model is before
    assert ready.simulation.store.empty  # what was refused is not taken for sent


def test_an_update_that_is_not_compressed_is_refused() -> None:
    ready = prepared(TOP, "rounds=1", algorithm="fedavg")
    bare = prepared(algorithm="fedavg").simulation
    events = list(ready.training.run(FilteredFederation(bare, ready.experiment.filters)))
    assert {e.reason.rpartition(": ")[2] for e in events if e.kind == "rejected"} == {
        "the update is not compressed as requested"
    }


class TestFeedback:
    def test_what_was_not_sent_is_kept_and_sent_later(self) -> None:
        """Σ of all that was sent and what is still kept is Σ of all that was trained."""
        ready = prepared(TOP, "select.count=8", "rounds=3", algorithm="fedavg")
        bare = prepared(algorithm="fedavg")
        trained = dict.fromkeys(range(8), 0.0)
        arrived = dict.fromkeys(range(8), 0.0)
        for number in range(1, 4):
            tasks = ready.training.tasks(range(8), ready.federation.population.sizes, round=number)
            with ready.federation.dispatch(tasks) as exchange:
                replies = list(exchange)
            with bare.federation.dispatch(tasks) as exchange:
                plain = list(exchange)
            for total, found in ((arrived, replies), (trained, plain)):
                for reply in found:
                    total[reply.task.client] = total[reply.task.client] + moved(reply)
            ready.federation.settle(reply.task for reply in replies)
        for client in range(8):
            kept = ready.simulation.store.read(client)[ERROR_FEEDBACK]["model"].numpy()
            assert (kept != 0).mean() > 0.5
            np.testing.assert_allclose(arrived[client] + kept, trained[client], atol=1e-4)

    def test_a_reply_that_was_not_folded_leaves_no_trace(self) -> None:
        ready = prepared(TOP, algorithm="fedavg")
        tasks = ready.training.tasks([0, 1], ready.federation.population.sizes, round=1)
        with ready.federation.dispatch(tasks) as exchange:
            replies = sorted(exchange, key=lambda reply: reply.task.client)
        ready.federation.settle([replies[0].task])
        assert ready.simulation.store.read(0)
        assert not ready.simulation.store.read(1)

    def test_it_helps(self) -> None:
        """With one change in a hundred sent, feedback is the difference between learning and not."""
        best = {}
        for feedback in ("true", "false"):
            top = f'{{name = "top-k", fraction = 0.02, error_feedback = {feedback}}}'
            option = f'filters=[{{name = "compress", sparsify = {top}}}]'
            ready = prepared(option, "rounds=20", "select.count=8", algorithm="fedavg")
            rounds = [event for event in ready.training.run(ready.federation) if isinstance(event, RoundFinished)]
            best[feedback] = rounds[-1].metrics["reference"]["loss"]
        assert best["true"] < best["false"]

    def test_nothing_is_kept_without_it(self) -> None:
        ready = prepared(QSGD, algorithm="fedavg")
        list(ready.training.run(ready.federation))
        assert ready.simulation.store.empty

    def test_it_stands_beside_what_the_method_keeps(self) -> None:
        ready = prepared(TOP, algorithm="scaffold")
        list(ready.training.run(ready.federation))
        kept = [ready.simulation.store.read(k) for k in range(8)]
        assert all(set(each) == {"control", ERROR_FEEDBACK} for each in kept if each)
        assert all(set(each[ERROR_FEEDBACK]) == {"model", "control"} for each in kept if each)


def moved(reply: Reply) -> np.ndarray:
    before, after = reply.task.payload["model"], reply.payload["model"]
    return np.concatenate([(after[name] - before[name]).reshape(-1).numpy() for name in sorted(before)])


def test_a_collect_that_only_sees_sums_is_refused_by_name() -> None:
    filtering = experiment(QSGD).filters[0]

    class Whole:
        class collect:  # noqa: N801
            name = "secure"

    assert "collect.name = 'secure' has compression of its own" in filtering.conflict(Whole)
    Whole.collect = PlainCollect()
    assert filtering.conflict(Whole) is None


def test_without_zstandard_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"zstandard: pip install .*\[privacy\]"):
        prepared('filters=[{name = "compress", entropy_coding = "zstd"}]')
