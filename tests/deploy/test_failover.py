"""The leader is killed, or hangs: how long until the next round is committed, from commit to commit."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_world import Tally, World, eventually
from postgres import fresh_database

TRIES = int(os.environ.get("WINNOW_FAULTS", "10"))
"""Kills, and as many stops, of the measured run; the promise is for 50."""
SOON = 30.0
"""Seconds that a busy machine may take; what is meant to happen is asserted apart from that."""


@pytest.fixture
def world(request: pytest.FixtureRequest, postgres: str, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, fresh_database(postgres), servers=request.param, sites=2)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow(part="kills")
@pytest.mark.parametrize("world", [2], indirect=True)
def test_a_job_goes_on_when_its_leader_hangs_and_when_it_is_killed(world: World) -> None:
    with world.running():
        hung = world.leader()
        assert world.interruption(world.stop) < SOON
        for site in world.sites:
            assert "Deadline" not in world.log(site), "noticed by a ping, not when a call had taken too long"
        world.go_on(hung)
        eventually(lambda: "this server is now a standby" in world.log(hung), "the old leader never stood by")
        world.wait_for_reserves()  # loading a runner would count, too, and takes longest where others are busy
        assert world.interruption(world.kill) < SOON
        assert world.leader() == hung
        assert [world.times_prepared(site) for site in world.sites] == [1, 1], "workers live on"


@pytest.mark.slow(part="chaos")
@pytest.mark.parametrize("world", [3], indirect=True)
def test_a_change_of_leaders_interrupts_a_job_for_seconds(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    try:
        with world.running():
            world.wait_for_reserves()
            for number in range(2 * TRIES):
                leader = world.leader()
                fault = (world.kill, world.stop)[number % 2]
                tally.add(f"leader: {fault.__name__}", world.interruption(fault))
                with capsys.disabled():
                    print(".", end="", flush=True)
                if fault == world.stop:
                    world.go_on(leader)
                world.start_missing()
                world.wait_for_reserves()
    finally:  # what was measured is told, also where it ends too early
        with capsys.disabled():
            print(f"\n{tally}")
    assert tally.median("leader: kill") <= 6.0
    assert tally.longest("leader: kill") <= 10.0
    assert tally.longest("leader: stop") <= 10.0
