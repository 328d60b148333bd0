"""Where time goes: parts add up, inner parts are not counted twice, and watching changes nothing."""

import time

import torch
from torch import nn

from winnow.progress.time_breakdown import RoundTimer, Stopwatch, forward_flops, peak_flops
from world import prepared


def test_time_in_an_inner_part_is_not_counted_twice() -> None:
    start = time.perf_counter()
    watch = Stopwatch()
    inner = watch.timed("inner", lambda: time.sleep(0.03))

    def outer() -> None:
        time.sleep(0.02)
        inner()

    watch.timed("outer", outer)()
    watch.switch(None)
    whole = time.perf_counter() - start
    assert watch.spent["inner"] >= 0.03
    assert watch.spent["outer"] >= 0.02
    assert sum(watch.spent.values()) <= whole


def test_the_parts_of_a_run_are_seen_and_the_run_is_the_same() -> None:
    plain, watched = prepared(algorithm="fedprof"), prepared(algorithm="fedprof")
    list(plain.training.run(plain.federation))
    instruments = RoundTimer()
    instruments.on_start(watched)
    for event in watched.training.run(watched.federation):
        instruments.on_event(event)
    shown = instruments.close()
    assert shown is not None
    assert {"data", "training", "profiling", "evaluation", "aggregation"} <= shown.seconds.keys()
    assert all(seconds >= 0 for seconds in shown.seconds.values())
    assert shown.rounds == 4
    assert 0 < shown.achieved_flops < 10 * shown.peak_flops
    for name, tensor in plain.training.model.items():
        assert torch.equal(tensor, watched.training.model[name])


def test_operations_are_counted() -> None:
    module = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 2))
    assert forward_flops(module, torch.randn(1, 9)) == 2 * (9 * 64 + 64 * 2)
    assert peak_flops(torch.device("cpu")) > 1e8
