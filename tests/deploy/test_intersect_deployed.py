"""Set intersection as a program that is submitted: sites in processes of their own give what a simulation gives."""

import json
from pathlib import Path

import pytest
from broker import Broker

from winnow.data import DataSettings
from winnow.deploy.work.checkpoints import load_snapshot
from winnow.deploy.work.orders import Finished
from winnow.experiment.divide import divide

pytest.importorskip(
    "private_set_intersection", reason="openmined-psi pins protobuf and is an extra for an environment of its own"
)

PROGRAM = """
import winnow
from winnow.privacy.intersect import Intersecting, Intersection


def identifiers(site, client):
    return [f"sum {int(row.sum())}" for row in site.examples(client).x]


found = {}
workflow = Intersection()
winnow.conduct(
    workflow,
    Intersecting(identifiers, found.__setitem__, share=True).handlers(),
    data={"name": "digits", "clients": 3},
    seed=4,
)
"""


def test_sites_in_processes_of_their_own_find_as_many_as_a_simulation(tmp_path: Path) -> None:
    scope: dict[str, object] = {}
    exec(compile(PROGRAM, "intersect.py", "exec"), scope)
    found = scope["found"]
    assert isinstance(found, dict)
    assert len(found) == 3
    assert found[0]
    assert json.dumps(found[0]) == json.dumps(found[2])
    divide(DataSettings(name="digits", clients=3), 4, 3, tmp_path / "data")
    own = [{"folder": str(tmp_path / "data" / f"site-{i}" / "digits")} for i in (1, 2, 3)]
    broker = Broker("", own, {}, tmp_path / "job")
    broker.with_program("intersect.py", PROGRAM, "name = 'intersect'\n[data]\nname = 'digits'")
    try:
        ended = broker.run()
    finally:
        broker.close()
    assert isinstance(ended, Finished), ended
    assert broker.checkpoint is not None
    assert load_snapshot(broker.checkpoint).values["size"] == len(found[0])
