"""Averaging among peers with sites of their own: the same models, and a server that passes on what it cannot read."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from loopback import Loopback, StoppedError
from papers import kit_of, provision
from safetensors.torch import load_file
from test_conformance_deployed import deployed

sys.path.insert(0, str(Path(__file__).parents[1]))
from winnow.config.schema import Experiment
from winnow.deploy.site.peer_encryption import PeerMessageCipher
from winnow.deploy.trust.errors import SealedMessageError
from winnow.deploy.wire.messages import PeerSite, WireTask
from winnow.deploy.wire.task_digest import NO_TASK_ID
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.privacy.peers.peer_messages import encrypt_model, tensor_bytes
from world import blobs, experiment

SETS = ("engine.execution=loop", "rounds=3", "select.count=8", "aggregate={name='partial', weights='size'}")
TOLD = (*SETS, "collect={name='peers', average_to_server=true}")


@pytest.mark.parametrize("algorithm", ["fedavg-rp", "fedper"])
def test_a_deployed_run_equals_the_servers_way(algorithm: str, tmp_path: Path) -> None:
    result = deployed(experiment(*TOLD, algorithm=algorithm), tmp_path).run()
    by_server = prepare_run(experiment(*SETS, algorithm=algorithm), RunInputs(dataset=blobs()))
    list(by_server.training.run(by_server.federation))
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(tensor, by_server.training.best[name]), name


def test_a_runner_that_begins_anew_goes_on_with_what_sites_keep(tmp_path: Path) -> None:
    wanted = experiment(*TOLD, algorithm="fedper")
    whole = deployed(wanted, tmp_path / "whole").run()
    broken = deployed(wanted, tmp_path / "broken")
    with pytest.raises(StoppedError):
        broken.run(stop_after=1)
    resumed = broken.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


class Logging(Loopback):
    """A server that writes down all that sites send it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: list[bytes] = []

    def _do(self, message: Any) -> None:
        before = len(self._messages)
        super()._do(message)
        for arrived in list(self._messages)[before:]:
            if arrived.path:
                self.seen.append(Path(arrived.path).read_bytes())


def test_no_model_is_in_anything_that_the_server_sees(tmp_path: Path) -> None:
    """Letters aside, which a site's agent seals before they leave; the next test is about them."""
    wanted: Experiment = experiment(*SETS, "collect={name='peers', average_to_server=true}", algorithm="fedper")
    line = deployed(wanted, tmp_path, Logging)
    result = line.run()
    assert isinstance(line, Logging)
    average = load_file(line.kept[0])
    shared = [tensor for name, tensor in average.items() if name.startswith("peers/") and tensor.numel() > 8]
    boxes = [seen for seen in line.seen if b"box" in seen[:200]]
    assert boxes
    assert shared
    for seen in boxes:
        assert not any(tensor.numpy().tobytes() in seen for tensor in shared)
    assert result.summary.rounds == 3


def test_who_logs_everything_cannot_open_a_letter(tmp_path: Path) -> None:
    """Nor pass an old one, or another's, for the one that is due."""
    provision(tmp_path)
    a, b = kit_of(tmp_path, "plant-a"), kit_of(tmp_path, "plant-b")
    sites = [
        PeerSite(site=kit.name, first_client=number, client_count=1, certificate=kit.certificate_pem)
        for number, kit in enumerate((a, b))
    ]
    model = {"weight": torch.arange(64.0)}
    box, message = encrypt_model(model, model, 0, 10)
    asked = WireTask(id=NO_TASK_ID, name="peers-average", clients=[1], round=2, version=1)
    [sealed] = PeerMessageCipher(a, "job", sites).encrypt(asked, 0, {1: message}).values()
    for text in (box, sealed):
        assert tensor_bytes(model)[:64] not in text
        assert message[-40:] not in text
    given = WireTask(
        id=NO_TASK_ID, name="peers-average", clients=[1], round=2, version=1, peer_messages={1: {0: sealed}}
    )
    assert PeerMessageCipher(b, "job", sites).decrypt(given) == {1: {0: message}}
    with pytest.raises(SealedMessageError):  # whoever is not its reader
        PeerMessageCipher(a, "job", sites).decrypt(given)
    for moved in (
        WireTask(id=NO_TASK_ID, name="peers-average", clients=[1], round=3, version=2, peer_messages={1: {0: sealed}}),
        WireTask(id=NO_TASK_ID, name="peers-average", clients=[1], round=2, version=1, peer_messages={1: {1: sealed}}),
    ):
        with pytest.raises(SealedMessageError):
            PeerMessageCipher(b, "job", sites).decrypt(moved)
    with pytest.raises(SealedMessageError):  # of another job
        PeerMessageCipher(b, "job-2", sites).decrypt(given)
