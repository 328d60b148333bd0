"""Many idle sites connected to one server; the baseline of a site's memory is what an agent may take, 60 MB."""

import os
import statistics
import tempfile
import time
from pathlib import Path

from bench.deploy.exchange import write_program
from bench.deploy.world import World, cpu_seconds, pss, rss, uses_torch, world
from bench.table import Row

SITES = int(os.environ.get("DEPLOY_SITES", "200"))
LIMIT_MB = 60.0
MB = 1e6
WATCHED = 30.0
"""Seconds of idling in which the server's processor time is counted."""
CHOSEN = 5


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="winnow-bench-") as name, world(Path(name), SITES) as here:
        time.sleep(10)
        agents = [here.processes[site].pid for site in here.names]
        assert not any(map(uses_torch, agents))
        begun = cpu_seconds(here.server)
        own = sum(map(cpu_seconds, agents))
        time.sleep(WATCHED)
        busy = 100 * (cpu_seconds(here.server) - begun) / WATCHED
        agents_busy = 100 * (sum(map(cpu_seconds, agents)) - own) / WATCHED / SITES
        resident, share = [rss(agent) / MB for agent in agents], [pss(agent) / MB for agent in agents]
        server = rss(here.server) / MB
        connected = here.connected()
        seconds = _job(here)
        after = here.connected()
    return [
        Row(name="sites that stay connected", value=connected, unit="", baseline=SITES, goal="all"),
        Row(name="  after a job", value=after, unit="", baseline=SITES, goal="all"),
        Row(name="until all are connected", value=here.seconds, unit="s", baseline=here.seconds),
        Row(name="a site, RSS: the largest", value=max(resident), unit="MB", baseline=LIMIT_MB, goal="< 1 × baseline"),
        Row(name="  the median", value=statistics.median(resident), unit="MB", baseline=LIMIT_MB),
        Row(name="  PSS, the median", value=statistics.median(share), unit="MB", baseline=LIMIT_MB),
        Row(name="  processor time while idle", value=agents_busy, unit="%", baseline=100),
        Row(name="the server, RSS", value=server, unit="MB", baseline=LIMIT_MB),
        Row(name="  processor time while all idle", value=busy, unit="%", baseline=100),
        Row(name=f"a job of 3 rounds over {CHOSEN} of them", value=seconds, unit="s", baseline=seconds),
    ]


def _job(here: World) -> float:
    """From submitting to the end."""
    program = write_program(here.folder, arrays=4, length=25_000, rounds=3)
    begun = time.perf_counter()
    job = here.connection.submit(program, sites=tuple(here.names[:CHOSEN]), min_sites=CHOSEN)
    job.wait(300)
    return time.perf_counter() - begun
