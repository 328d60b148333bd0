"""Bytes counted on the wire: rounds of a figure's federation between a server and sites as processes of their own.

What a client sends has a size that does not depend on its data, so it holds a few samples, and the cohort is as large
as the figure's. Jobs of one and of three rounds are compared: what is sent before and after all rounds is left out.
"""

import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from winnow.deploy.people.local import LocalFederation, free_port, local_federation
from winnow.deploy.people.packing import Described, describe
from winnow.experiment.resolve import resolve
from winnow.reproduce.lines import UplinkLine
from winnow.reproduce.paper import Wanted
from winnow.reproduce.secagg.codes import Code
from winnow.reproduce.secagg.relay import Relay, relaying

SITES = ("site-1", "site-2", "site-3")
*COUNTED, KEEPER = SITES
"""It has clients, too, but what it sends is not counted: a keeper also sends the sums of masks."""
FEW, MORE = 1, 3
"""Rounds of the two jobs."""
SETTLED = 1.0
"""Seconds after a job's end until its last messages have been sent."""


SMALL = ("data.partition={name='classes', per_client=2, rows=20}", "local.epochs=1")


def count_bytes(of: str, preset: str, codes: Sequence[Code], wanted: Wanted) -> list[UplinkLine]:
    """A line for each code."""
    invited = resolve(preset, sets=wanted.sets).select.count
    assert invited is not None, "the figures' presets say how many are invited"
    each = ceil(invited / len(SITES))
    clients = each * len(SITES)
    sets = (*wanted.sets, f"data.clients={clients}", f"select.count={clients}", *SMALL)
    behind = free_port()
    with (
        TemporaryDirectory(prefix="winnow-wire-") as scratch,
        relaying(behind) as relay,
        local_federation(
            _job(preset, codes[0], sets, FEW),
            len(SITES),
            Path(scratch) / "federation",
            data_directory=wanted.data_directory,
            port=relay.port,
            listen=behind,
        ) as federation,
    ):
        lines = []
        for code in codes:
            few, more = (_spent(federation, relay, _job(preset, code, sets, rounds)) for rounds in (FEW, MORE))
            up, down = ((b - a) / (MORE - FEW) / (each * len(COUNTED)) for a, b in zip(few, more, strict=True))
            lines.append(UplinkLine(of=of, algorithm=code.name, clients=clients, up=up, down=down))
        return lines


def _job(preset: str, code: Code, sets: tuple[str, ...], rounds: int) -> Described:
    keeper = (f'collect.keeper="{KEEPER}"',) if code.sets else ()
    return describe(preset, sets=(*code.sets, *keeper, *sets), seed=0, rounds=rounds)


def _spent(federation: LocalFederation, relay: Relay, job: Described) -> tuple[int, int]:
    """Bytes up and down between the server and the sites that are counted, over a whole job."""
    before = _so_far(federation, relay)
    federation.connection.submit(job, min_sites=len(SITES)).wait()
    time.sleep(SETTLED)
    after = _so_far(federation, relay)
    return after[0] - before[0], after[1] - before[1]


def _so_far(federation: LocalFederation, relay: Relay) -> tuple[int, int]:
    crossed = [relay.of_process(federation.processes[site].pid) for site in COUNTED]
    return sum(each.up for each in crossed), sum(each.down for each in crossed)
