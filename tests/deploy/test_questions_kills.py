"""Questions with noise while processes are killed: one answer, one noise, one booking, whatever dies."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from killing import jobs_begun, noisy_answer, strike, submission_of
from table_world import NOISE_RULE, TableWorld, running

from waiting import PATIENCE, eventually
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.deploy.client.connection import connect
from winnow.deploy.client.submit_question import DeployedAnswer
from winnow.deploy.site.agent import STATE_FILE
from winnow.deploy.site.state_store import SiteStateStore
from winnow.privacy.concentrated_privacy import rho_of

SITES = ("east", "north", "west")
EPSILON = 0.4
KILLS = 4
"""In each question."""


@pytest.mark.slow(part="chaos")
@pytest.mark.parametrize("what", ["worker", "agent", "runner", "server"])
def test_a_kill_shows_no_second_noise_and_frees_no_budget(tmp_path: Path, what: str) -> None:
    world, rng = TableWorld(tmp_path, SITES), np.random.default_rng(18)
    world.allow(NOISE_RULE)
    question = StatisticsQuestion(table="stays", by=("ward",), epsilon=EPSILON)
    with running(world) as connection, connect(world.kit("bo"), retry_seconds=PATIENCE) as watching:
        for asked in range(1, 4):
            answers: list[DeployedAnswer] = []
            asking = threading.Thread(target=lambda into=answers: into.append(connection.ask(question, timeout=120)))
            asking.start()
            eventually(lambda asked=asked: jobs_begun(watching) == asked)
            for _ in range(KILLS):
                time.sleep(float(rng.uniform(0.1, 2.0)))
                if asking.is_alive():
                    strike(world, what, rng)
            asking.join(240)
            [answer] = answers
            assert answer.values == noisy_answer(world, question, submission_of(connection, answer.job))
            for site in SITES:
                state = SiteStateStore(world.kit(site) / "state" / STATE_FILE)
                assert state.budgets.spent("ana", "stays") == pytest.approx(asked * rho_of(EPSILON, 1e-6))
                state.close()
