"""Statements with noise while agents and servers are killed at random moments: one noise each, and no budget freed."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from killing import jobs_begun, noisy_answer, strike, submission_of
from table_world import TableWorld, running

from waiting import PATIENCE, eventually
from winnow.analytics.question import read_question
from winnow.core import RunError
from winnow.deploy.client.connection import connect
from winnow.deploy.client.submit_question import DeployedAnswer
from winnow.deploy.site.agent import STATE_FILE
from winnow.deploy.site.state_store import SiteStateStore
from winnow.privacy.concentrated_privacy import rho_of

SITES = ("east", "north", "west")
RULE = '[[queries]]\npeople = ["ana"]\ntables = ["stays"]\nallow = ["aggregate"]\nnoise = { epsilon = 4.0 }\n'
SQL = "SELECT ward, COUNT(*) AS n, AVG(cost) AS c FROM stays WHERE age >= 20 GROUP BY ward"
EPSILON, KILLS, MOST = 0.3, 50, 40


def spent(world: TableWorld, site: str) -> float:
    state = SiteStateStore(world.kit(site) / "state" / STATE_FILE)
    try:
        return state.budgets.spent("ana", "stays")
    finally:
        state.close()


@pytest.mark.slow(part="kills")
def test_fifty_kills_show_no_second_noise_and_free_no_budget(tmp_path: Path) -> None:
    """A statement ends with the one answer that the sites' secrets make of it, or with one line; in either case a site
    has booked it once, or not at all if it never began, and what is booked stays booked.
    """
    world, rng, kills = TableWorld(tmp_path, SITES), np.random.default_rng(19), 0
    world.allow(RULE)
    question, price = read_question({"kind": "query", "sql": SQL, "epsilon": EPSILON}), rho_of(EPSILON, 1e-6)
    booked = dict.fromkeys(SITES, 0.0)
    answered = 0
    with running(world) as connection, connect(world.kit("bo"), retry_seconds=PATIENCE) as watching:
        for asked in range(1, MOST + 1):
            answers, lines = list[DeployedAnswer](), list[str]()

            def ask(answers: list[DeployedAnswer] = answers, lines: list[str] = lines) -> None:
                try:
                    answers.append(connection.ask(question, timeout=120))
                except RunError as error:
                    lines.append(str(error))

            asking = threading.Thread(target=ask)
            asking.start()
            eventually(lambda asked=asked, asking=asking: jobs_begun(watching) >= asked or not asking.is_alive())
            while asking.is_alive() and kills < KILLS:
                time.sleep(float(rng.exponential(0.6)))
                if asking.is_alive():
                    strike(world, str(rng.choice(["agent", "server"])), rng)
                    kills += 1
            asking.join(240)
            assert not asking.is_alive()
            for answer in answers:
                answered += 1
                assert answer.values == noisy_answer(world, question, submission_of(connection, answer.job))
            assert all("\n" not in line for line in lines)
            for site in SITES:
                now = spent(world, site)
                assert now == pytest.approx(booked[site] + price) or (lines and now == booked[site])
                booked[site] = now
            if kills >= KILLS:
                break
    assert kills == KILLS
    assert answered
