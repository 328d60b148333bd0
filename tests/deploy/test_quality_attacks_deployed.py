"""A lying server asks a site about its clients' data: more often, more finely, or for more than it may have."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_quality_deployed import ASKED, BLOCKS, answer, settings, site_of, small_site

from winnow.core import Failure, Reply
from winnow.data import ClientData, Preprocessing
from winnow.deploy.jobs.client_quality_sharing_limits import MOVED_BINS, NOT_SIGNED, OTHER_MODEL
from winnow.deploy.jobs.party_data import SiteData
from winnow.deploy.jobs.site_training import training_handlers
from winnow.deploy.jobs.task_executor import SiteHandlers
from winnow.experiment.build_training_workflow import DEFAULT_INPUTS
from winnow.learn.client_quality.reference_source import SummarySettings
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.simulated_identities import simulated_identities

SUMMARY = SummarySettings(blocks=BLOCKS, classes=3, edges=(), seed=settings().seed, min_rows=5)


def test_how_many_rows_differ_leaves_only_where_the_policy_shares_inputs() -> None:
    service = site_of(settings(), small_site(), share_evidence=["columns"])
    reply = answer(service, "assess", replace(ASKED, blocks=("columns",)))
    assert isinstance(reply, Reply)
    assert reply.payload.keys() == {"columns"}


def with_a_rare_class() -> SiteData:
    """One sample of the last class."""
    rng = np.random.default_rng(3)
    y = np.array([0, 1] * 30)
    y[7] = 2
    clients = ClientData(
        x=rng.normal(size=(60, 5)).astype(np.float32), y=y, rows=np.arange(60), offsets=np.array([0, 30, 60]), classes=3
    )
    return SiteData(clients=clients, local_test=None, preprocessing=Preprocessing(), tokens=False)


def test_no_row_of_a_rare_class_leaves_a_holder_of_the_reference() -> None:
    data = with_a_rare_class()
    row = data.clients.x[7]
    reply = answer(site_of(settings("reference_clients=[0]"), data), "summarise-reference", SUMMARY)
    assert isinstance(reply, Reply)
    part = reply.payload["summary"]
    assert np.asarray(part["columns.counts"]).tolist()[2] == 0
    assert not any(
        np.isclose(np.asarray(array), row).all(-1).any() for name, array in part.items() if np.shape(array)[-1:] == (5,)
    )
    others = data.clients.x[:30][data.clients.y[:30] < 2]
    assert np.asarray(part["rows"])[0] == 29
    np.testing.assert_allclose(np.asarray(part["columns.scale"]), others.var(0) + others.var(0).mean() / 29, rtol=1e-3)


@pytest.mark.parametrize("lie", [{"min_rows": 1}, {"seed": 12345}])
def test_a_holder_of_the_reference_resamples_as_signed(lie: dict[str, int]) -> None:
    """A server that chooses how rows are resampled gets as many equations for them as it likes."""
    service = site_of(settings("reference_clients=[0]"), small_site())
    assert isinstance(answer(service, "summarise-reference", SUMMARY), Reply)
    refused = answer(service, "summarise-reference", replace(SUMMARY, **lie))
    assert isinstance(refused, Failure)
    assert refused.reason == NOT_SIGNED


class RememberedBallots:
    """The identities of a site whose agent remembers, as its database does, what was signed on which ballot."""

    def __init__(self) -> None:
        self._ballots: dict[bytes, bytes] = {}
        self.name = simulated_identities().name

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        if self._ballots.setdefault(ballot, message) != message:
            raise ProtocolError("a different statement was already signed for this ballot")
        return b""


@pytest.mark.parametrize("restarted", [False, True])
def test_data_are_seen_through_one_model_a_round_and_by_the_same_bins(restarted: bool) -> None:
    agent: Any = RememberedBallots()

    def started() -> SiteHandlers:
        regression = settings("local.learning_rate=0.01")
        return training_handlers(regression, DEFAULT_INPUTS, small_site(classes=None), 0, agent)

    service, asked = started(), replace(ASKED, edges=(-0.5, 0.5))
    first = answer(service, "assess", asked)
    assert isinstance(first, Reply)
    service = started() if restarted else service
    again = answer(service, "assess", asked)
    assert isinstance(again, Reply)
    np.testing.assert_array_equal(again.payload["outcomes"]["mean"], first.payload["outcomes"]["mean"])
    moved = answer(service, "assess", replace(asked, edges=(-0.5, 0.51)))
    assert isinstance(moved, Failure)
    assert moved.reason == MOVED_BINS
    other = answer(service, "assess", asked, model={name: 2 * each for name, each in service.site.initial.items()})
    assert isinstance(other, Failure)
    assert other.reason == OTHER_MODEL
    assert isinstance(answer(service, "assess", asked, round=2), Reply)
