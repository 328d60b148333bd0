"""Comparisons and nearest distances in SPU, in an environment of its own: settings as JSON on standard input.

Three parties with ABY3 over 64-bit rings, in SPU's own simulator. Prints the medians of three runs, after a first one
that compiles: 1,000 comparisons of sums of three owners' numbers, and the nearest of all owners' nearest distances.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from spu import libspu
from spu.utils import simulation


def seconds(work: Callable[[], object]) -> float:
    work()
    runs = []
    for _ in range(3):
        begun = time.perf_counter()
        work()
        runs.append(time.perf_counter() - begun)
    return statistics.median(runs)


def main() -> None:
    asked = json.load(sys.stdin)
    parties = simulation.Simulator.simple(3, libspu.ProtocolKind.ABY3, libspu.FieldType.FM64)
    rng = np.random.default_rng(1)
    numbers = [rng.integers(0, 9, asked["comparisons"]).astype(np.int32) for _ in range(3)]
    compare = simulation.sim_jax(parties, lambda a, b, c: a + b + c >= 10)
    nearest = simulation.sim_jax(parties, lambda a, b, c: jnp.sort(jnp.concatenate([a, b, c]))[: asked["nearest"]])
    distances = [np.array(each, np.float32) for each in asked["distances"]]
    found = {"comparisons": seconds(lambda: compare(*numbers)), "nearest": seconds(lambda: nearest(*distances))}
    assert np.array_equal(compare(*numbers), sum(numbers) >= 10)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
