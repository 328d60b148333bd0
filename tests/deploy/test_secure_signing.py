"""What a site's agent signs for its clients, whom it tells them to believe, and what it never forgets."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from papers import a_project, kit_of, provision
from siting import Script, World, agent_at, deploy, serving, task

from winnow.core.errors import ConfigError
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle
from winnow.deploy.jobs.client_statement_signatures import (
    KEEPER_NUMBER,
    statement_bytes,
    submission_id,
    verify_statement,
)
from winnow.deploy.jobs.ipc_messages import (
    ReleaseNoteRequest,
    ReleaseNoteResponse,
    ReleaseRequest,
    ReleaseResponse,
    RunTask,
    SignRequest,
    SignResponse,
)
from winnow.deploy.jobs.party_signing_via_agent import AgentIdentities
from winnow.deploy.site.signing_proxy import SigningProxy
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.site.submission_records import SubmissionRecords
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import utc_now
from winnow.deploy.trust.provisioning import open_provisioner
from winnow.deploy.trust.signed_documents import is_signed, with_purpose
from winnow.deploy.trust.signing import JOB_PURPOSE, sign
from winnow.deploy.wire.messages import PeerSite, StopJob, SubmitResult, WireTask
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.secure_collect import SecureAggregation
from winnow.privacy.secagg.session_terms import roster_digest

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group that P-256 signatures are numbers of."""
ANNOUNCED = b"two keys and a commitment"


class Desk:
    """A worker's line to its agent, without the socket between them; and the worker's end of it."""

    def __init__(self, notary: SigningProxy, submission: str = "a job", keeper: str | None = None) -> None:
        self._notary = notary
        self.word = AgentIdentities(self, submission, keeper)
        self.at(1)

    def at(self, round: int) -> "Desk":
        self._round = round
        task = WireTask(id="0" * 64, name="secure-advertise-keys", clients=[0], round=round, version=0)
        self.word.set_task(RunTask(task=task, site_keys=self._notary.site_public_keys(round)))
        return self

    def send(self, message: SignRequest | ReleaseRequest) -> None:
        self._answer = self._notary.handle_request(self._round, message)

    def receive(self, wanted: type, timeout: float | None = None) -> SignResponse | ReleaseResponse:
        assert isinstance(self._answer, wanted)
        return self._answer


def neighbour(kit: Kit, first: int, clients: int = 2) -> PeerSite:
    return PeerSite(site=kit.name, first_client=first, client_count=clients, certificate=kit.certificate_pem)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "project"
    provision(folder, a_project())
    return folder


@pytest.fixture
def folder(project: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(project, tmp_path / "project"))


@pytest.fixture
def records(folder: Path) -> Iterator[Callable[[str], SubmissionRecords]]:
    """Opens the records of a site by the name of their file; they are closed when the test ends."""
    with ExitStack() as stack:

        def open_records(name: str) -> SubmissionRecords:
            return stack.enter_context(closing(SiteStateStore(folder / f"{name}.sqlite"))).submissions

        yield open_records


@pytest.fixture
def notary(folder: Path, records: Callable[[str], SubmissionRecords]) -> Callable[..., SigningProxy]:
    """The notary of a site that has heard of plant-a with clients 0 and 1, and plant-b with 2 and 3."""

    def make(site: str = "plant-a", **settings: object) -> SigningProxy:
        kit = kit_of(folder, site)
        made = SigningProxy(kit, records(site), "a job", job="job-1", **settings)  # type: ignore[arg-type]
        made.fix_client_numbers({"plant-a": 0, "plant-b": 2}[site], 2)
        made.set_peer_sites([neighbour(kit_of(folder, "plant-a"), 0), neighbour(kit_of(folder, "plant-b"), 2)])
        return made

    return make


def test_what_one_site_signs_another_believes_and_nothing_else(notary: Callable[..., SigningProxy]) -> None:
    ours, theirs = Desk(notary("plant-a")), Desk(notary("plant-b"))
    signature = ours.word.sign(1, ANNOUNCED)
    assert theirs.word.verify(1, ANNOUNCED, signature)
    assert not theirs.word.verify(0, ANNOUNCED, signature), "another client's word"
    assert not theirs.word.verify(2, ANNOUNCED, signature), "another site's word"
    assert not theirs.word.verify(9, ANNOUNCED, signature), "nobody's word"
    assert not theirs.word.verify(1, b"other keys", signature)
    assert not Desk(notary("plant-b"), "another job").word.verify(1, ANNOUNCED, signature)
    assert not theirs.at(2).word.verify(1, ANNOUNCED, signature), "said in another round"


def test_a_number_is_who_is_behind_it(
    folder: Path,
    notary: Callable[..., SigningProxy],
    records: Callable[[str], SubmissionRecords],
) -> None:
    """A server may give a number to one site when it talks to a second, and to another when it talks to a third."""
    ours, theirs = notary("plant-a"), notary("plant-b")
    names = [Desk(ours).word.name(number) for number in range(4)]
    assert names == ["plant-a 0", "plant-a 1", "plant-b 0", "plant-b 1"]
    assert [Desk(theirs).word.name(number) for number in range(4)] == names
    with pytest.raises(ProtocolError, match="client 4 belongs to no site of this job with a valid certificate"):
        Desk(ours).word.name(4)
    deceived = SigningProxy(kit_of(folder, "plant-b"), records("deceived"), "a job", job="job-1")
    deceived.fix_client_numbers(0, 2)
    deceived.set_peer_sites([neighbour(kit_of(folder, "plant-a"), 2), neighbour(kit_of(folder, "plant-b"), 0)])
    swapped = [Desk(deceived).word.name(number) for number in range(4)]
    terms = SecureAggregation().terms(bytes(16), 1)
    assert roster_digest(terms, range(4), names) != roster_digest(terms, range(4), swapped)


def test_a_list_of_sites_that_is_not_believed_gets_no_messages(
    folder: Path, notary: Callable[..., SigningProxy]
) -> None:
    ours = notary("plant-a", allowed_sites=("plant-a",))
    assert ours.peer_sites == ()
    ours.set_peer_sites([neighbour(kit_of(folder, "plant-a"), 0)])
    assert [each.site for each in ours.peer_sites] == ["plant-a"]


def test_nobody_signs_for_clients_of_others_or_without_end(notary: Callable[..., SigningProxy]) -> None:
    ours = Desk(notary("plant-a"))
    with pytest.raises(ProtocolError, match="does not sign for client 2"):
        ours.word.sign(2, ANNOUNCED)
    with pytest.raises(ProtocolError, match="the limit is"):
        ours.word.sign(0, bytes(2 << 20))


def test_only_a_willing_site_that_the_job_names_is_its_keeper(notary: Callable[..., SigningProxy]) -> None:
    with pytest.raises(ProtocolError, match="does not act as mask keeper"):
        Desk(notary("plant-b")).word.sign(KEEPER_NUMBER, b"a key")
    signature = Desk(notary("plant-b", may_keep_masks=lambda: True)).word.sign(KEEPER_NUMBER, b"a key")
    assert Desk(notary(), keeper="plant-b").word.verify(KEEPER_NUMBER, b"a key", signature)
    assert not Desk(notary(), keeper="plant-a").word.verify(KEEPER_NUMBER, b"a key", signature)
    assert not Desk(notary()).word.verify(KEEPER_NUMBER, b"a key", signature)


def test_a_revoked_certificate_counts_no_more_in_a_job_that_runs(
    notary: Callable[..., SigningProxy], folder: Path
) -> None:
    ours, signature = notary("plant-a"), Desk(notary("plant-b")).word.sign(2, ANNOUNCED)
    assert Desk(ours).word.verify(2, ANNOUNCED, signature)
    with open_provisioner(folder, a_project(), None, utc_now()) as workshop:
        list(workshop.revoke("plant-b"))
    assert not Desk(ours).word.verify(2, ANNOUNCED, signature)
    assert [each.site for each in ours.site_public_keys(1)] == ["plant-a"]


def test_a_server_that_lies_about_sites_is_not_believed(notary: Callable[..., SigningProxy], folder: Path) -> None:
    ours, kits = notary(), {name: kit_of(folder, name) for name in ("plant-a", "plant-b", "the-lead", "server-1")}
    a, b = neighbour(kits["plant-a"], 0), neighbour(kits["plant-b"], 2)
    for listed in (
        [a, b, neighbour(kits["plant-b"], 4)],
        [a, neighbour(kits["plant-b"], 1)],
    ):
        ours.set_peer_sites(listed)
        assert ours.site_public_keys(1) == []
    chosen = notary(allowed_sites=["plant-a"])
    assert chosen.site_public_keys(1) == [], "the author wants plant-a alone"
    for kit in (kits["the-lead"], kits["server-1"], kits["plant-a"]):
        ours.set_peer_sites([a, msgspec.structs.replace(b, certificate=kit.certificate_pem)])
        assert [each.site for each in ours.site_public_keys(1)] == ["plant-a"]


def test_an_update_leaves_once_whatever_becomes_of_process_and_job(folder: Path) -> None:
    kit, path = kit_of(folder, "plant-a"), folder / "state.sqlite"

    def released(client: int, round: int, submission: str = "a job") -> bool:
        """As a new agent would have it."""
        state = SiteStateStore(path)
        made = SigningProxy(kit, state.submissions, submission, job="job-1")
        made.fix_client_numbers(10, 2)
        answer = made.handle_request(round, ReleaseRequest(client=client))
        state.delete_job("a job")
        state.close()
        assert isinstance(answer, ReleaseResponse)
        return answer.times > 0

    assert released(10, 3)
    assert released(11, 3)
    assert not released(10, 3)
    assert not released(10, 2)
    assert not released(5, 4), "somebody else's"
    assert released(10, 4)
    assert released(10, 3, submission="submitted again")


@pytest.mark.parametrize("anew", [False, True])
def test_clients_keep_their_numbers_in_a_job_whatever_the_server_says(
    anew: bool,
    folder: Path,
    records: Callable[[str], SubmissionRecords],
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = kit_of(folder, "plant-a"), kit_of(folder, "plant-b")
    ours = SigningProxy(a, records("state"), "a job", job="job-1")
    ours.set_peer_sites([neighbour(a, 0, clients=60)])
    assert ours.peer_sites == (), "nobody has numbered them yet"
    assert ours.handle_request(1, ReleaseRequest(client=0)) == ReleaseResponse(times=0)
    ours.fix_client_numbers(4, 2)
    ours.set_peer_sites([neighbour(a, 4), neighbour(b, 0, clients=4)])
    assert len(ours.peer_sites) == 2
    assert ours.handle_request(1, ReleaseRequest(client=4)) == ReleaseResponse(times=1)
    if anew:
        ours = SigningProxy(a, records("state"), "a job", job="job-1")
    assert ours.first_client_number(None) == 4
    for first in (0, 3, 5, 60):
        with pytest.raises(ConfigError, match=f"clients from {first}, but this job started with 4"):
            ours.fix_client_numbers(first, 2)
    with pytest.raises(ConfigError, match="have 60 clients, but had 2 when the job started"):
        ours.fix_client_numbers(4, 60)
    for listed in (
        [neighbour(a, 0)],
        [neighbour(a, 4, clients=60)],
        [neighbour(a, 4), neighbour(b, 0, clients=3)],
        [neighbour(a, 4), neighbour(b, 6, clients=4)],
    ):
        caplog.clear()
        ours.set_peer_sites(listed)
        assert ours.peer_sites == ()
        assert "differ from those fixed earlier in this job" in caplog.text
        assert ours.handle_request(1, ReleaseRequest(client=4)) == ReleaseResponse(times=0), "it left before"
        assert all(
            ours.handle_request(1, ReleaseRequest(client=number)) == ReleaseResponse(times=0)
            for number in (0, 3, 6, 60)
        )
    ours.fix_client_numbers(None, 2)
    ours.set_peer_sites([neighbour(a, 4), neighbour(b, 0, clients=4)])
    assert len(ours.peer_sites) == 2
    assert ours.handle_request(2, ReleaseRequest(client=4)) == ReleaseResponse(times=2)


def test_what_was_signed_for_a_ballot_and_where_an_update_went_is_not_forgotten(folder: Path) -> None:
    kit, path = kit_of(folder, "plant-a"), folder / "state.sqlite"

    def asked(
        wish: SignRequest | ReleaseRequest | ReleaseNoteRequest, round: int = 3
    ) -> SignResponse | ReleaseResponse | ReleaseNoteResponse:
        """As a new agent would answer."""
        state = SiteStateStore(path)
        made = SigningProxy(kit, state.submissions, "a job", job="job-1")
        made.fix_client_numbers(0, 2)
        made.set_peer_sites([neighbour(kit, 0)])
        answer = made.handle_request(round, wish)
        state.delete_job("a job")
        state.close()
        return answer

    assert asked(SignRequest(client=0, content=b"a list", ballot=b"1")).signature
    assert asked(SignRequest(client=0, content=b"a list", ballot=b"1")).signature
    refused = SignResponse(refused="a different statement was already signed for this ballot")
    assert asked(SignRequest(client=0, content=b"closed", ballot=b"1")) == refused
    assert asked(SignRequest(client=1, content=b"closed", ballot=b"1")).signature, "another client"
    assert asked(SignRequest(client=0, content=b"closed", ballot=b"2")).signature, "another session"
    assert asked(ReleaseNoteRequest(client=0)) == ReleaseNoteResponse()
    assert asked(ReleaseRequest(client=0, note=b"one")) == ReleaseResponse(times=1)
    assert asked(ReleaseNoteRequest(client=0)) == ReleaseNoteResponse(note=b"one")
    assert asked(ReleaseNoteRequest(client=0), round=4) == ReleaseNoteResponse()
    assert asked(ReleaseRequest(client=0, note=b"two")) == ReleaseResponse(times=0)
    assert asked(ReleaseRequest(client=0, note=b"two", instead_of=b"another")) == ReleaseResponse(times=0)
    assert asked(ReleaseRequest(client=0, note=b"two", instead_of=b"one"), round=2) == ReleaseResponse(times=0)
    assert asked(ReleaseRequest(client=0, note=b"two", instead_of=b"one")) == ReleaseResponse(times=1), "it counts once"
    assert asked(ReleaseRequest(client=0, note=b"three", instead_of=b"one")) == ReleaseResponse(times=0)
    assert asked(ReleaseNoteRequest(client=0)) == ReleaseNoteResponse(note=b"two")
    assert asked(ReleaseRequest(client=0, note=b"next"), round=4) == ReleaseResponse(times=2)
    assert asked(ReleaseRequest(client=0, note=b"late", instead_of=b"two")) == ReleaseResponse(times=0)
    assert asked(ReleaseRequest(client=0, instead_of=b"next"), round=4) == ReleaseResponse(times=2)
    assert asked(ReleaseNoteRequest(client=0), round=4) == ReleaseNoteResponse(), "it left without a note the last time"
    assert asked(ReleaseRequest(client=0, instead_of=b"next"), round=4) == ReleaseResponse(times=0)


def test_a_submission_is_what_its_author_signed_and_that_signature(folder: Path) -> None:
    lead, plain = kit_of(folder, "the-lead"), Bundle(config='[data]\nname = "turbines"\n')

    def signed(value: bytes | None = None) -> Bundle:
        made = sign(lead, plain.signed)
        return msgspec.structs.replace(plain, certificate=made.certificate, signature=value or made.value)

    first = signed()
    r, s = decode_dss_signature(first.signature)
    twin = signed(encode_dss_signature(r, ORDER - s))
    assert twin != first
    assert is_signed(twin.signature, with_purpose(JOB_PURPOSE, plain.signed), lead.certificate)
    assert submission_id(twin) == submission_id(first), "what a server can make of a signature"
    assert submission_id(msgspec.structs.replace(first, certificate=b"\n" + first.certificate)) == submission_id(first)
    assert submission_id(signed()) != submission_id(first)


def test_an_agent_signs_for_its_jobs_process_and_remembers_beyond_the_job(tmp_path: Path) -> None:
    world, script = World(tmp_path / "project"), Script(tmp_path / "server")
    bundle, neighbours = world.bundle(), world.neighbours()
    submission = submission_id(read_bundle(bundle))
    first = deploy(script, bundle, first_client=0, peer_sites=neighbours)
    with serving(world, script, "memory://notary") as server, agent_at(world, server.url):
        script.tell(first, task("certify", clients=(1,), round=3, settings=1))
        told = script.payload(script.wait(SubmitResult))
        assert told["first"]
        first_client, clients, key = told["parties"]["plant-a"]
        assert (first_client, clients, [*told["parties"]]) == (0, 2, ["plant-a", "plant-b"])
        signature = bytes.fromhex(told["signature"])
        assert verify_statement(bytes.fromhex(key), signature, statement_bytes(submission, 3, 1, b"said"))
        assert not verify_statement(bytes.fromhex(key), signature, with_purpose(JOB_PURPOSE, b"said"))
        script.tell(task("certify", clients=(1,), round=4, settings=2))
        assert script.payload(script.wait(SubmitResult, 2))["refused"] == "this site does not sign for client 2"
        script.tell(StopJob(job="job-1"), first, task("certify", clients=(1,), round=3, settings=1))
        again = script.payload(script.wait(SubmitResult, 3))
        assert again["signature"]
        assert not again["first"]
