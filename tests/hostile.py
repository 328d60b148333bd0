"""Clients that lie: a catalogue of odd replies, and a federation in which some clients send them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import torch
from msgspec.structs import replace

from winnow.core import UNTIL_ALL, Cost, Failure, Outcome, Reply, Task, Until
from winnow.deploy.jobs.wire_tasks import outcomes_of
from winnow.deploy.wire.messages import ClientResult
from winnow.deploy.wire.safetensors_files import write_parts

Lie: TypeAlias = Callable[[Reply, np.random.Generator], Outcome]

LIES: dict[str, Lie] = {}
CREDIBLE: set[str] = set()
"""Lies that no check can tell from the truth: they may spoil what is learnt, though not end it."""


def lie(name: str, *, credible: bool = False) -> Callable[[Lie], Lie]:
    def add(made: Lie) -> Lie:
        LIES[name] = made
        CREDIBLE.update({name} if credible else ())
        return made

    return add


@dataclass
class Lying:
    """A federation whose clients of these numbers tell a lie in place of some replies."""

    federation: Any
    liars: frozenset[int]
    lies: tuple[str, ...]
    rng: np.random.Generator
    often: float = 1.0
    tasks: frozenset[str] = frozenset()
    """Of which tasks; of all where none is named."""
    told: list[tuple[str, Task]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.federation, name)

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> "_Exchange":
        return _Exchange(self.federation.dispatch(tasks, until), self)

    def heard(self, outcome: Outcome) -> Outcome:
        task = outcome.task
        lies = isinstance(outcome, Reply) and task.client in self.liars and (task.name in self.tasks or not self.tasks)
        if not lies or self.rng.random() > self.often:
            return outcome
        name = self.lies[self.rng.integers(len(self.lies))]
        self.told.append((name, task))
        return LIES[name](outcome, self.rng)


class _Exchange:
    def __init__(self, exchange: Any, by: Lying) -> None:
        self._exchange, self._by = exchange, by

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)

    def __iter__(self) -> Iterator[Outcome]:
        return map(self._by.heard, self._exchange)

    def __enter__(self) -> "_Exchange":
        return self

    def __exit__(self, *_: object) -> None:
        self._exchange.close()


# Parts ----------------------------------------------------------------------------------------------------------------


def numbers(array: Any) -> np.ndarray:
    return np.asarray(array).copy()


def one_array(change: Callable[[Any, np.random.Generator], Any]) -> Lie:
    """One array of one part is another; a reply without arrays gets a part that it should not have."""

    def told(reply: Reply, rng: np.random.Generator) -> Reply:
        places = [(part, name) for part, arrays in reply.payload.items() for name in arrays]
        if not places:
            return replace(reply, payload={"model": {"x": change(torch.ones(3), rng)}})
        part, name = places[rng.integers(len(places))]
        arrays = {**reply.payload[part], name: change(reply.payload[part][name], rng)}
        return replace(reply, payload={**reply.payload, part: arrays})

    return told


def every_array(change: Callable[[torch.Tensor], Any]) -> Lie:
    return lambda reply, rng: replace(
        reply,
        payload={
            part: {name: change(torch.as_tensor(numbers(array))) for name, array in arrays.items()}
            for part, arrays in reply.payload.items()
        },
    )


def tensor(array: Any) -> torch.Tensor:
    return torch.as_tensor(numbers(array))


class Claimed(Mapping[str, Any]):
    """Arrays in a file that are said to be enormous, and must not be read."""

    def __init__(self, arrays: Mapping[str, Any], dtype: Any) -> None:
        self._arrays, self._dtype = arrays, dtype

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def dtype_and_shape(self, name: str) -> Any:
        return self._dtype, (1 << 40,)

    def __getitem__(self, name: str) -> Any:
        raise MemoryError("an array was read that is larger than it can be")


def claimed(dtype: str) -> Lie:
    from winnow.deploy.wire.dtypes import DTYPES

    return lambda reply, rng: replace(
        reply, payload={part: Claimed(arrays, DTYPES[dtype]) for part, arrays in reply.payload.items()}
    )


DTYPES = ["bfloat16", "float16", "float64", "complex64", "bool", "int64", "int8", "uint8", "uint16", "uint64"]
for each in (*DTYPES, "float8_e4m3fn"):
    LIES[f"one array of {each}"] = one_array(lambda a, _, to=each: tensor(a).to(getattr(torch, to)))
    LIES[f"all arrays of {each}"] = every_array(lambda a, to=each: a.to(getattr(torch, to)))

ODD: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "none": lambda a, _: None,
    "a list": lambda a, _: [1.0, 2.0],
    "text": lambda a, _: "x" * 1000,
    "objects": lambda a, _: np.array([object(), None], dtype=object),
    "strings": lambda a, _: np.array(["a", "bc"]),
    "dates": lambda a, _: np.array(["2020-01-01"], dtype="datetime64[D]"),
    "records": lambda a, _: np.zeros(2, dtype=[("a", "f4"), ("b", "i8")]),
    "numpy's or torch's": lambda a, _: a.numpy() if isinstance(a, torch.Tensor) else torch.as_tensor(numbers(a)),
    "the other byte order": lambda a, _: numbers(a).astype(numbers(a).dtype.newbyteorder(">")),
    "0-d": lambda a, _: tensor(a).reshape(-1)[:1].sum(),
    "empty": lambda a, _: tensor(a)[..., :0] if tensor(a).dim() else torch.zeros(0),
    "no bytes": lambda a, _: np.zeros(0, np.uint8),
    "flat": lambda a, _: tensor(a).reshape(-1).repeat(2),
    "one dimension more": lambda a, _: tensor(a)[None],
    "thirty dimensions": lambda a, _: tensor(a).reshape(-1)[:1].reshape([1] * 30) if tensor(a).numel() else a,
    "transposed": lambda a, _: tensor(a).T if tensor(a).dim() == 2 else tensor(a).reshape(-1)[:-1],
    "stretched to a terabyte": lambda a, _: torch.zeros(1).expand(1 << 38),
    "bytes stretched to a terabyte": lambda a, _: np.broadcast_to(np.zeros(1, np.uint8), (1 << 40,)),
    "longer": lambda a, _: np.concatenate([numbers(a).reshape(-1), numbers(a).reshape(-1)[:1]]),
    "garbage": lambda a, rng: np.frombuffer(rng.bytes(numbers(a).nbytes), np.uint8),
    "no UTF-8": lambda a, _: np.frombuffer(b"\x81\xa3\xff\xfe\xfd\x01", np.uint8),
    "lists in lists": lambda a, _: np.frombuffer(b"\x91" * 20_000, np.uint8),
    "another message": lambda a, _: np.frombuffer(msgspec.msgpack.encode({"a": [1, None, -1]}), np.uint8),
    "numbers for a map": lambda a, _: np.frombuffer(msgspec.msgpack.encode({-1: b"", 2**62: b"x" * 99}), np.uint8),
}
for each, change in ODD.items():
    LIES[f"an array that is {each}"] = one_array(change)


@lie("a byte flipped")
def _(reply: Reply, rng: np.random.Generator) -> Outcome:
    def flipped(array: Any, rng: np.random.Generator) -> Any:
        found = numbers(array)
        raw = found.reshape(-1).view(np.uint8)
        if len(raw):
            raw[rng.integers(len(raw))] ^= np.uint8(1 << rng.integers(8))
        return torch.as_tensor(found) if isinstance(array, torch.Tensor) else found

    return one_array(flipped)(reply, rng)


CREDIBLE.add("a byte flipped")
CREDIBLE.add("an array that is numpy's or torch's")
CREDIBLE.add("an array that is garbage")


def values(change: Callable[[torch.Tensor], torch.Tensor]) -> Lie:
    """All numbers of all parts are others, of the same types and shapes."""

    def told(reply: Reply, rng: np.random.Generator) -> Reply:
        def altered(array: Any) -> Any:
            made = change(tensor(array).to(torch.float64)).to(tensor(array).dtype)
            return made if isinstance(array, torch.Tensor) else made.numpy()

        parts = {p: {n: altered(a) for n, a in arrays.items()} for p, arrays in reply.payload.items()}
        return replace(reply, payload=parts)

    return told


VALUES = {
    "not a number": lambda t: torch.full_like(t, torch.nan),
    "infinite": lambda t: torch.full_like(t, torch.inf),
    "minus infinite": lambda t: torch.full_like(t, -torch.inf),
    "as large as can be": lambda t: torch.full_like(t, 3.4e38),
    "1e30": lambda t: torch.full_like(t, 1e30),
    "-1e18": lambda t: torch.full_like(t, -1e18),
}
POISON = {
    "1e14": lambda t: torch.full_like(t, 1e14),
    "-1e6": lambda t: torch.full_like(t, -1e6),
    "tiny": lambda t: torch.full_like(t, 1e-42),
    "zero": torch.zeros_like,
    "minus one": lambda t: torch.full_like(t, -1.0),
    "the opposite": lambda t: -t,
}
for each, made in (VALUES | POISON).items():
    LIES[f"values that are {each}"] = values(made)
CREDIBLE.update(f"values that are {each}" for each in POISON)

for each in ("F32", "U8", "I64", "BF16"):
    LIES[f"a terabyte of {each} in a file"] = claimed(each)


def parts_of(change: Callable[[dict[str, Any], np.random.Generator], Any]) -> Lie:
    return lambda reply, rng: replace(reply, payload=change(dict(reply.payload), rng))


def some(names: Iterable[str], rng: np.random.Generator) -> str:
    found = [*names]
    return found[rng.integers(len(found))] if found else "model"


LIES |= {
    "no parts": parts_of(lambda parts, _: {}),
    "a part too few": parts_of(lambda parts, rng: {k: v for k, v in parts.items() if k != some(parts, rng)}),
    "a part too many": parts_of(lambda parts, _: {**parts, "surplus": {"x": torch.ones(2)}}),
    "a model too many": parts_of(lambda parts, _: {"model": {"x": torch.ones(2)}, **parts}),
    "a profile too many": parts_of(lambda parts, _: {"profile": {"mean": torch.ones(2)}, **parts}),
    "an odd name": parts_of(lambda parts, _: {**parts, "\x1b[2J\n" * 300: {}}),
    "an empty part": parts_of(lambda parts, rng: {**parts, some(parts, rng): {}}),
    "empty parts": parts_of(lambda parts, _: {part: {} for part in parts}),
    "a part that is none": parts_of(lambda parts, rng: {**parts, some(parts, rng): None}),
    "a part that is text": parts_of(lambda parts, rng: {**parts, some(parts, rng): "model"}),
    "an array too many": parts_of(
        lambda parts, rng: {**parts, (k := some(parts, rng)): {**parts.get(k, {}), "more": torch.ones(2)}}
    ),
    "an array too few": parts_of(
        lambda parts, rng: {**parts, (k := some(parts, rng)): dict([*parts.get(k, {}).items()][1:])}
    ),
    "arrays by other names": parts_of(
        lambda parts, _: {part: {f"{name}.": a for name, a in arrays.items()} for part, arrays in parts.items()}
    ),
    "arrays under each other's names": parts_of(
        lambda parts, _: {
            part: dict(zip(arrays, reversed([*arrays.values()]), strict=True)) for part, arrays in parts.items()
        }
    ),
    "parts that are none at all": lambda reply, _: replace(reply, payload=None),
}

# Metrics, costs, messages, failures -----------------------------------------------------------------------------------

NUMBERS = {
    "not a number": float("nan"),
    "infinite": float("inf"),
    "minus infinite": float("-inf"),
    "1e308": 1e308,
    "-1e308": -1e308,
    "1e29": 1e29,
    "-1e29": -1e29,
    "negative": -5.0,
    "zero": 0.0,
    "tiny": 5e-324,
    "a whole number of 400 digits": 10**400,
    "true": True,
    "text": "0.5",
    "none": None,
    "complex": 1j,
}
TOLD = ("loss", "steps", "total_step_size", "start_loss", "start_loss_rms", "accuracy")
for each, number in NUMBERS.items():
    LIES[f"metrics that are {each}"] = lambda reply, _, n=number: replace(
        reply, metrics=dict.fromkeys(reply.metrics or ("loss",), n)
    )
    LIES[f"a metric that is {each}"] = lambda reply, rng, n=number: replace(
        reply, metrics={**reply.metrics, some(reply.metrics or TOLD, rng): n}
    )
CREDIBLE.update(name for name in LIES if "metric" in name)
LIES |= {
    "no metrics": lambda reply, _: replace(reply, metrics={}),
    "no loss": lambda reply, _: replace(reply, metrics={k: v for k, v in reply.metrics.items() if k != "loss"}),
    "a surplus metric": lambda reply, _: replace(reply, metrics={**reply.metrics, "secret": 1.0}),
    "a metric with an odd name": lambda reply, _: replace(reply, metrics={**reply.metrics, "\x00\x1b[31m\n" * 99: 1.0}),
    "ten thousand metrics": lambda reply, _: replace(reply, metrics={f"m{i}": 1.0 for i in range(10_000)}),
    "every metric there is": lambda reply, _: replace(reply, metrics=dict.fromkeys(TOLD, 0.5)),
}
CREDIBLE.update(("no metrics", "no loss", "every metric there is"))

COSTS = {"negative": -1.0, "not a number": float("nan"), "infinite": float("inf"), "1e300": 1e300, "nothing": 0.0}
for each, number in COSTS.items():
    LIES[f"seconds that are {each}"] = lambda reply, _, n=number: replace(reply, cost=Cost(training_seconds=n))
    LIES[f"a cost that is {each}"] = lambda reply, _, n=number: replace(reply, cost=Cost(*[n] * len(Cost())))
CREDIBLE.update(("seconds that are nothing", "a cost that is nothing"))

PEER_MESSAGES: dict[str, Callable[[dict[int, bytes]], Any]] = {
    "to strangers": lambda messages: {**messages, 10**6: b"hello", -1: b"hello"},
    "to all": lambda messages: dict.fromkeys(range(-3, 50), b"hello"),
    "to nobody": lambda messages: {},
    "that are empty": lambda messages: dict.fromkeys(messages or (0,), b""),
    "that are long": lambda messages: dict.fromkeys(messages or (0,), b"x" * 100_000),
    "that are others": lambda messages: dict.fromkeys(messages or (1,), b"\xff\xfe" * 54),
    "that are cut": lambda messages: {k: v[:-1] for k, v in messages.items()},
}
for each, written in PEER_MESSAGES.items():
    LIES[f"peer messages {each}"] = lambda reply, _, w=written: replace(
        reply, peer_messages=w(dict(reply.peer_messages))
    )
CREDIBLE.update(f"peer messages {each}" for each in PEER_MESSAGES)

FAILURES = {
    "a failure of many lines": ("train\ning", "one\ntwo\r\x1b[2J\x00three"),
    "a failure of a megabyte": ("x" * 10**6, "y" * 10**6),
    "a failure without words": ("", ""),
}
for each, (stage, reason) in FAILURES.items():
    LIES[each] = lambda reply, _, s=stage, r=reason: Failure(task=reply.task, stage=s, reason=r)

LIES["something to keep"] = lambda reply, _: replace(reply, new_client_state={"own": {"x": torch.ones(3)}})
CREDIBLE.add("something to keep")


# Files ----------------------------------------------------------------------------------------------------------------


class Files:
    """Lies told in the bytes of a file, as they cross the wire."""

    folder: Path | None = None

    @classmethod
    def lie(cls, change: Callable[[bytearray, np.random.Generator], bytes]) -> Lie:
        def told(reply: Reply, rng: np.random.Generator) -> Outcome:
            assert cls.folder is not None, "Files.folder is where files may lie"
            path = cls.folder / "reply"
            write_parts(path, reply.payload)
            path.write_bytes(change(bytearray(path.read_bytes()), rng))
            answer = ClientResult(
                job="j", task="0" * 64, client=0, metrics=dict(reply.metrics), peer_messages=dict(reply.peer_messages)
            )
            (outcome,) = outcomes_of(answer, str(path), [reply.task], clients=1000)
            return outcome

        return told


def _flipped(data: bytearray, rng: np.random.Generator) -> bytes:
    for _ in range(int(rng.integers(1, 9))):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(data)


LIES |= {
    "a file as it is": Files.lie(lambda data, _: bytes(data)),
    "a file with flipped bits": Files.lie(_flipped),
    "a file that was cut": Files.lie(lambda data, rng: bytes(data[: rng.integers(len(data))])),
    "a file that goes on": Files.lie(lambda data, rng: bytes(data) + rng.bytes(9)),
    "a file of bfloat16": lambda reply, rng: LIES["a file as it is"](LIES["all arrays of bfloat16"](reply, rng), rng),
    "a file of another type": Files.lie(lambda data, _: bytes(data).replace(b'"F32"', b'"I32"')),
    "a file of nothing": Files.lie(lambda data, _: b""),
    "a file of noise": Files.lie(lambda data, rng: rng.bytes(len(data))),
}
CREDIBLE.update(("a file as it is", "a file with flipped bits"))
