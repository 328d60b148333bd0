"""A hostile program behind mandatory filters: its author and the server collude, and get nothing past them."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from siting import POLICY, Script, World, agent_at, deploy, serving, task

from support.needs import SANDBOX
from winnow.deploy.jobs.bundle_format import Bundle, write_bundle
from winnow.deploy.jobs.ipc_messages import FilterResult, PrepareJob, RunTask, TaskResult
from winnow.deploy.jobs.output_filter import OutputFilter
from winnow.deploy.sandbox import isolation
from winnow.deploy.sandbox.child_entry_point import OUTPUT_FILTER_MODULE, WORKER_MODULE
from winnow.deploy.site.job_processes import REDACTED_FAILURE
from winnow.deploy.trust.signing import sign
from winnow.deploy.wire.messages import Blob, ClientResult, DeployResult, SubmitResult
from winnow.deploy.wire.safetensors_files import StoredArrays, write_arrays, write_parts

pytestmark = SANDBOX.unless(isolation.sandbox_unavailable_reason() is None)

SAMPLES, FEATURES = 40, 8
SENT = {"w": torch.zeros(6), "seen": torch.tensor([7, 7])}
NOISE = '[[filters]]\nname = "local-dp"\nclip = 1e-6\nnoise_multiplier = 1.0\n'
PROGRAM = """
import time
import numpy as np, torch, winnow
from winnow.core import Failure, Reply
from winnow.core.scatter_gather import ScatterAndGather

def steal(tasks, holdings):
    how, replies = tasks[0].settings, []
    for task in tasks:
        x = np.asarray(holdings.examples(task.client).x, np.float32)
        model = {name: torch.as_tensor(array).clone() for name, array in task.payload["model"].items()}
        secret = torch.as_tensor(x.reshape(-1))
        reply = {"payload": {"model": model}}
        if how == "metric names":
            reply["metrics"] = {x.tobytes().hex(): 1.0}
        if how == "metric values":
            reply["metrics"] = {"loss": float(x[0, 0]), "nan": float("nan"), "huge": 1e308}
        if how == "another part":
            reply["payload"] = {"model": model, "extra": {"w": secret}}
        if how == "a part alone":
            reply["payload"] = {"extra": dict(task.payload["extra"])}
        if how == "nothing":
            reply["payload"] = {}
        if how == "array names":
            model[x.tobytes().hex()] = torch.zeros(1)
        if how == "fewer arrays":
            del model["seen"]
        if how == "another kind":
            model["w"] = model["w"].double() + 1e-300 * secret[:6].double()
        if how == "another shape":
            model["w"] = model["w"].reshape(2, 3)
        if how == "whole numbers":
            model["seen"] = (secret[:2] * 1e6).long()
        if how == "not finite":
            model["w"][0] = float("nan")
        if how == "keep":
            reply["new_client_state"] = {part: {"model": secret} for part in ("feedback", "filters.feedback", "mine")}
        if how == "peer messages":
            reply["peer_messages"] = {0: x.tobytes()}
        if how == "words":
            print(x.tobytes().hex())
            raise ValueError(x.tobytes().hex())
        if how == "a failure's words":
            replies.append(Failure(task=task, stage=x.tobytes().hex(), reason=x.tobytes().hex()))
            continue
        replies.append(Reply(task=task, **reply))
    return replies[::-1] if how == "the order" else replies

workflow = ScatterAndGather("train", {"w": np.zeros(6)}, rounds=1)
winnow.run_workflow(workflow, {"train": steal, "other": steal}, data="plant")
"""
LEAVE = ("metric names", "metric values", "whole numbers", "keep", "the order", "plain")
"""After these an update leaves, and not what was hidden besides it; after the others, a failure."""
FAIL = (
    *("another part", "a part alone", "nothing", "array names", "fewer arrays", "another kind", "another shape"),
    *("peer messages", "words", "a failure's words"),
)


class Theft:
    """The program at a real worker and output filter of a real agent, asked by a server that colludes with it."""

    def __init__(self, folder: Path, filters: str = NOISE) -> None:
        rng = np.random.default_rng(5)
        self.x = rng.normal(size=(2, SAMPLES, FEATURES)).astype(np.float32)
        (folder / "clients").mkdir(parents=True)
        for client, x in enumerate(self.x):
            np.savez(folder / "clients" / f"{client}.npz", x=x, y=np.arange(SAMPLES) % 2)
        site = f'[resources]\nmemory_mb = 4000\ncpus = 1\n[data.plant]\nfolder = "{folder / "clients"}"\nclasses = 2\n'
        self.world = World(folder / "project", policy=POLICY.replace("turbines", "plant") + filters, site=site)
        self.script = Script(folder / "server")
        self._made = folder / "part"
        self.parts = {"model": self._hold(SENT), "extra": self._hold({"w": torch.zeros(6)})}
        self._asked = 0

    def _hold(self, arrays: dict[str, torch.Tensor]) -> Blob:
        write_arrays(self._made, arrays)
        return self.script.hold(self._made.read_bytes())

    def begin(self) -> None:
        plain = Bundle(
            config='[data]\nname = "plant"\n',
            files={"steal.py": PROGRAM.encode()},
            main="steal.py",
            issued=time.time(),
        )
        signed = sign(self.world.kit("the-lead"), plain.signed)
        bundle = replace(plain, certificate=signed.certificate, signature=signed.value)
        self.script.tell(deploy(self.script, write_bundle(bundle), first_client=0))
        joined = self.script.wait(DeployResult, seconds=120)
        assert joined.accepted, joined.reason
        assert joined.data.sizes == [SAMPLES, SAMPLES]

    def ask(self, how: str, name: str = "train") -> list[ClientResult]:
        """Both clients' answers, in the order in which they came."""
        before = len(self.script.all_of(SubmitResult))
        self._asked += 1
        self.script.tell(task(name, clients=(0, 1), settings=how, round=self._asked, parts=self.parts))
        self.script.wait(SubmitResult, before + 2, seconds=60)
        return [each.result for each in self.script.all_of(SubmitResult)[before:]]

    def sees(self, answer: ClientResult) -> dict[str, torch.Tensor]:
        assert answer.blob is not None, answer
        with StoredArrays(self.script.spool.path(answer.blob)) as stored:
            return dict(stored)

    def leaked(self) -> bool:
        """Whether any sample's bytes, as they are or written out, are among all that the server heard."""
        heard = b"".join(self.script.raw)
        rows = [row.tobytes() for x in self.x for row in x]
        return any(row in heard or row.hex().encode() in heard for row in rows)


@pytest.fixture(scope="module")
def theft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theft]:
    theft = Theft(tmp_path_factory.mktemp("theft"))
    with (
        serving(theft.world, theft.script, "memory://theft") as near,
        agent_at(theft.world, near.url, WORKER_MODULE, OUTPUT_FILTER_MODULE),
    ):
        theft.begin()
        yield theft


@pytest.mark.parametrize("how", [*LEAVE, *FAIL, "not finite"])
def test_nothing_but_a_filtered_model_gets_past_the_output_filter(theft: Theft, how: str) -> None:
    answers = theft.ask(how)
    assert [answer.client for answer in answers] == [0, 1]
    for answer in answers:
        assert (answer.metrics, answer.peer_messages, answer.seconds) == ({}, {}, 0.0)
        assert (answer.stage, answer.failure) in (("", None), ("working", REDACTED_FAILURE))
        assert (answer.failure is None) == (how in LEAVE) or how == "not finite"
        if answer.failure is None:
            seen = theft.sees(answer)
            assert seen.keys() == {"model/w", "model/seen"}
            assert (seen["model/w"].dtype, seen["model/w"].shape) == (torch.float32, (6,))
            assert torch.equal(seen["model/seen"], SENT["seen"])
            assert seen["model/w"].all()  # noise is on each of them
    assert not theft.leaked()


def test_a_task_of_the_codes_own_is_not_answered(theft: Theft) -> None:
    for how in ("metric names", "nothing"):
        for answer in theft.ask(how, "other"):
            assert (answer.blob, answer.metrics, answer.failure) == (None, {}, REDACTED_FAILURE)
    assert not theft.leaked()


def test_what_filters_keep_is_out_of_the_codes_reach(tmp_path: Path) -> None:
    """Feedback is added to the next update behind the bound: code that could write it would send what it likes."""
    filters = [{"name": "clip", "norm": 1e-3}, {"name": "compress", "sparsify": {"name": "top-k", "fraction": 0.5}}]
    output_filter = OutputFilter(PrepareJob(job="job-1", folder=str(tmp_path), bundle="", data={}, filters=filters))
    write_arrays(tmp_path / "sent", SENT)
    write_parts(tmp_path / "update", {"model": SENT})
    secret = {"model": torch.full((6,), 99.0)}
    write_parts(tmp_path / "keep", {"feedback": secret, "filters.feedback": secret, "mine": {"x": torch.ones(1)}})
    order = RunTask(task=task("train").task, parts={"model": str(tmp_path / "sent")})
    answer = ClientResult(job="job-1", task=order.task.id, client=0)
    did = TaskResult(
        result=answer, payload=str(tmp_path / "update"), new_client_state=str(tmp_path / "keep"), volatile=True
    )
    first = output_filter.apply(FilterResult(task=order, result=did))
    assert first.new_client_state is not None, first
    assert not first.volatile
    with StoredArrays(Path(first.new_client_state)) as stored:
        kept = {part: dict(arrays) for part, arrays in stored.parts().items()}
    assert torch.equal(kept["mine"]["x"], torch.ones(1))
    assert not kept["filters.feedback"]["model"].any()
    second = output_filter.apply(
        FilterResult(task=replace(order, client_state={0: first.new_client_state}), result=did)
    )
    assert second.payload is not None
    with StoredArrays(Path(second.payload)) as stored:
        packet = dict(stored)["model/packet"].numpy().tobytes()
    assert np.float32(99.0).tobytes() not in packet
