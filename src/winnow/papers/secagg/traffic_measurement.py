"""Bytes counted on the wire: rounds of a figure's federation between a server and sites as processes of their own.

What a client sends has a size that does not depend on its data, so it holds a few samples, and the cohort is as large
as the figure's. Jobs of one and of three rounds are compared: what is sent before and after all rounds is left out.
"""

import time
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory

from winnow.config.resolve import resolve
from winnow.deploy.client.bundle import JobDescription, describe_job
from winnow.deploy.client.free_port import free_port
from winnow.deploy.client.local_federation import LocalFederation, local_federation
from winnow.papers.paper import ReproductionOptions
from winnow.papers.result_json_lines import TrafficResultLine
from winnow.papers.secagg.compared_compressions import CompressionCode
from winnow.papers.secagg.counting_proxy import CountingProxy, serve_counting_proxy

SITES = ("site-1", "site-2", "site-3")
*MEASURED_SITES, KEEPER_SITE = SITES
"""It has clients, too, but what it sends is not counted: a keeper also sends the sums of masks."""
FEW_ROUNDS, MORE_ROUNDS = 1, 3
"""Rounds of the two jobs."""
SETTLE_SECONDS = 1.0
"""Seconds after a job's end until its last messages have been sent."""


SMALL_DATA = ("data.partition={name='classes', per_client=2, rows=20}", "local.epochs=1")


def measure_traffic(
    item: str, preset: str, codes: Sequence[CompressionCode], wanted: ReproductionOptions
) -> list[TrafficResultLine]:
    """A line for each code."""
    cohort = resolve(preset, sets=wanted.sets).select.count
    assert cohort is not None, "the figures' presets say how many are selected"
    each = ceil(cohort / len(SITES))
    clients = each * len(SITES)
    sets = (*wanted.sets, f"data.clients={clients}", f"select.count={clients}", *SMALL_DATA)
    server_port = free_port()
    with (
        TemporaryDirectory(prefix="winnow-wire-") as scratch,
        serve_counting_proxy(server_port) as relay,
        local_federation(
            _job(preset, codes[0], sets, FEW_ROUNDS),
            len(SITES),
            Path(scratch) / "federation",
            data_directory=wanted.data_directory,
            port=relay.port,
            listen=server_port,
        ) as federation,
    ):
        lines = []
        for code in codes:
            few, more = (
                _spent(federation, relay, _job(preset, code, sets, rounds)) for rounds in (FEW_ROUNDS, MORE_ROUNDS)
            )
            up, down = (
                (b - a) / (MORE_ROUNDS - FEW_ROUNDS) / (each * len(MEASURED_SITES))
                for a, b in zip(few, more, strict=True)
            )
            lines.append(TrafficResultLine(item=item, algorithm=code.name, clients=clients, up=up, down=down))
        return lines


def _job(preset: str, code: CompressionCode, sets: tuple[str, ...], rounds: int) -> JobDescription:
    keeper = (f'collect.keeper="{KEEPER_SITE}"',) if code.sets else ()
    return describe_job(preset, sets=(*code.sets, *keeper, *sets), seed=0, rounds=rounds)


def _spent(federation: LocalFederation, relay: CountingProxy, job: JobDescription) -> tuple[int, int]:
    """Bytes up and down between the server and the sites that are counted, over a whole job."""
    before = _so_far(federation, relay)
    federation.connection.submit(job, min_sites=len(SITES)).wait()
    time.sleep(SETTLE_SECONDS)
    after = _so_far(federation, relay)
    return after[0] - before[0], after[1] - before[1]


def _so_far(federation: LocalFederation, relay: CountingProxy) -> tuple[int, int]:
    crossed = [relay.of_process(federation.processes[site].pid) for site in MEASURED_SITES]
    return sum(each.up for each in crossed), sum(each.down for each in crossed)
