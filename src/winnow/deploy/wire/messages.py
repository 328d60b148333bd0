"""The messages. Each is a frozen struct with a tag; what does not match its type is rejected when it is decoded.

They are used between a site and its server (the site calls, the server answers), between a user and a server, and
between a server or site and the process of a job (`winnow.deploy.jobs`). Arrays are never part of a message: they are
*blobs*, safetensors files that are named by the digest of their contents and transferred in chunks.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

PROTOCOLS = (2,)
"""The versions of these messages that this Winnow speaks. `Hello` and `RequestRefusal` keep the tags and fields of
version 1, so that parties of any two versions can say which they speak.
"""

MAX_TEXT = 65_536
MAX_CLIENT_NAME = 200

LOG_KIND, EVENT_KIND, SITE_LOST_KIND = "log", "event", "site-lost"
"""Kinds of log lines: text; an event of the run as JSON; the server's text about a site that rejected the job before it
started or stopped responding. Only the server itself writes the last kind, so a program may act on it.
"""

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
"""Names of sites, jobs, data: safe as the name of a file."""
Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""SHA-256 of a blob's contents."""
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
ClientName: TypeAlias = Annotated[str, Meta(max_length=MAX_CLIENT_NAME)]
"""What a site calls one of its clients: text for people, which identifies nobody."""
AuditLine: TypeAlias = Annotated[bytes, Meta(max_length=262_144)]
"""An entry of an audit log as it was written."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
PowerOfTwo: TypeAlias = Annotated[int, Meta(ge=-100, le=100)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]


class WireMessage(Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Base class of all messages."""


class Blob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a file, named by their digest."""

    digest: Digest
    size: Count


class Resources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site has free, or what a job asks of each site."""

    cpus: Annotated[float, Meta(ge=0)] = 1.0
    memory_mb: Count = 512
    gpus: Count = 0


class DataDescription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job learns about a site's data: how many clients hold how many samples, of which shape and kind."""

    sizes: list[Count]
    local_test_sizes: list[Count] = []
    sample_shape: list[Count] = []
    outputs: Count = 0
    """Classes of a classification, targets of a regression."""
    classification: bool = True
    tokens: bool = False
    columns: Text = ""
    """A digest of the names of the features in their order, where they have names; it does not reveal the names."""
    labels: Text = ""
    """The same for the labels of the classes, in the order of their numbers."""
    client_names: list[ClientName] = []
    """What the site's clients are called, where its configuration lets jobs know."""
    unlike_columns: dict[Count, PowerOfTwo] = {}
    """Columns that are not as large as the job states them: by their place there, the power of two between them."""


class WireTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task for some of a site's clients. Its `id` is the digest of everything else, so that a task that is
    delivered twice, even by another server, is recognised.
    """

    id: Digest
    name: Name
    clients: list[Count]
    round: Count
    version: Count
    settings: bytes = b"null"
    """JSON of the handler's settings."""
    parts: dict[str, Blob] = {}
    peer_messages: dict[int, dict[int, bytes]] = {}
    """To a client, from clients: sealed, or meant for everybody's eyes."""


class ClientResult(WireMessage, frozen=True, kw_only=True):
    """The result of one client for a task: a blob with its parts, or why there is none."""

    job: Name
    task: Digest
    client: Count
    metrics: dict[str, float] = {}
    seconds: Seconds = 0.0
    blob: Blob | None = None
    peer_messages: dict[int, bytes] = {}
    stage: Text = ""
    failure: Text | None = None


# A site and its server ------------------------------------------------------------------------------------------------


class Hello(
    WireMessage,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=False,
    rename={"winnow_version": "winnow", "clock": "now"},
):
    """A site introduces itself. Its name is that of its certificate; clocks are compared."""

    protocols: list[int]
    winnow_version: Text
    data: list[Name]
    resources: Resources
    clock: float
    jobs: list[Name] = []
    """Those it takes part in; the server tells it to stop those that have ended or that the server does not know."""
    certificate: bytes = b""
    """For sites that seal messages to this one (PEM, issued by the CA of the project)."""
    check: bool = False
    """Only asks whether the site would be welcome; no session begins."""


class Welcome(WireMessage, frozen=True, kw_only=True):
    protocol: int
    session: Name
    heartbeat: Seconds
    """Seconds within which the site must poll again."""


class Poll(WireMessage, frozen=True, kw_only=True):
    """Ask for instructions; the server answers when there are any, or after a heartbeat.

    Instructions are numbered; those up to `received` are not sent again.
    """

    session: Name
    received: Count
    free: Resources


class PeerSite(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site of the same job: its clients, and the certificate to seal messages with."""

    site: Name
    first_client: Count
    client_count: Count
    certificate: bytes


class DeployJob(WireMessage, frozen=True, kw_only=True):
    """Prepare a job: check it against the site's policy, start its process, and report the outcome (`DeployResult`)."""

    job: Name
    bundle: Blob
    submitter: Name
    resources: Resources
    first_client: Count | None = None
    """The number of this site's first client, once it is known."""
    peer_sites: list[PeerSite] = []
    """All sites of the job, once their clients are numbered and if they exchange sealed messages."""


class AssignTask(WireMessage, frozen=True, kw_only=True):
    job: Name
    task: WireTask


class CancelTasks(WireMessage, frozen=True, kw_only=True):
    """The results of these tasks are no longer needed."""

    job: Name
    tasks: list[Digest]


class Settle(WireMessage, frozen=True, kw_only=True):
    """A round is committed. The new state of the clients listed with a task becomes valid, and their results may be
    deleted. For `ended_tasks` the proposed state of all other clients is discarded. Other tasks continue.
    """

    job: Name
    round: Count
    tasks: dict[Digest, list[Count]]
    ended_tasks: list[Digest] = []


class StopJob(WireMessage, frozen=True, kw_only=True):
    """The job has ended at this site: stop its process and delete its files."""

    job: Name
    reason: Text = ""


class ControlAgent(WireMessage, frozen=True, kw_only=True):
    """Stop or restart the site's agent, if its policy allows that, and say so first (`ControlResult`)."""

    restart: bool


SiteInstruction: TypeAlias = DeployJob | AssignTask | CancelTasks | Settle | StopJob | ControlAgent


class SiteInstructions(WireMessage, frozen=True, kw_only=True):
    first_number: Count
    """The number of the first of these instructions."""
    instructions: list[SiteInstruction]


class DeployResult(WireMessage, frozen=True, kw_only=True):
    """Whether a site takes part in a job, and with which data."""

    session: Name
    job: Name
    accepted: bool
    reason: Text = ""
    data: DataDescription | None = None


class ControlResult(WireMessage, frozen=True, kw_only=True):
    """Whether the agent stops or restarts as it was asked to; `reason` says why not."""

    session: Name
    restart: bool
    """What was asked: a late answer must not be taken for one to another request."""
    accepted: bool
    reason: Text = ""


class SubmitResult(WireMessage, frozen=True, kw_only=True):
    """The result of a client; its blob was uploaded before."""

    session: Name
    result: ClientResult


# Blobs ----------------------------------------------------------------------------------------------------------------


class GetUploadedSize(WireMessage, frozen=True, kw_only=True):
    """Ask how many bytes of a blob the server already has."""

    job: Name
    blob: Blob


class FetchBlob(WireMessage, frozen=True, kw_only=True):
    """Stream the blob from `offset` on."""

    job: Name
    blob: Blob
    offset: Count = 0


class PutBlob(WireMessage, frozen=True, kw_only=True):
    """The first message of an upload: chunks of the blob from `offset` on follow."""

    job: Name
    blob: Blob
    offset: Count = 0


class UploadedSize(WireMessage, frozen=True, kw_only=True):
    """How many bytes of a blob the server has."""

    size: Count


# A user and a server --------------------------------------------------------------------------------------------------


class SubmitJob(WireMessage, frozen=True, kw_only=True):
    """A new job; its bundle was uploaded under this name. Submitting the same job again changes nothing."""

    job: Name
    bundle: Blob


class ListJobs(WireMessage, frozen=True, kw_only=True):
    """List all jobs, or one."""

    job: Name | None = None


class AbsentSite(Struct, frozen=True, kw_only=True):
    """A site that is currently excluded from a running job."""

    site: Name
    since: float
    reason: Text


class JobInfo(Struct, frozen=True, kw_only=True):
    job: Name
    title: Text
    status: Text
    """queued, starting, running, finished, failed or aborted"""
    reason: Text
    submitter: Name
    organisation: Text
    priority: int
    round: Count
    rounds: Count
    sites: list[Name]
    submitted: float
    metrics: dict[str, dict[str, float]]
    absent_sites: list[AbsentSite] = []
    rejections: dict[Name, Text] = {}
    """The sites that rejected the job, and why."""


class JobList(WireMessage, frozen=True, kw_only=True):
    jobs: list[JobInfo]


class AbortJob(WireMessage, frozen=True, kw_only=True):
    job: Name
    reason: Text = ""


class ListSites(WireMessage, frozen=True, kw_only=True):
    """List all sites."""


class SiteInfo(Struct, frozen=True, kw_only=True):
    site: Name
    organisation: Text
    connected: bool
    revoked: bool
    """Whether the certificate it last showed is revoked."""
    last_seen: float
    winnow_version: Text
    data: list[Name]
    free: Resources
    jobs: list[Name]


class SiteList(WireMessage, frozen=True, kw_only=True):
    sites: list[SiteInfo]


class ControlSite(WireMessage, frozen=True, kw_only=True):
    site: Name
    restart: bool


class GetStatus(WireMessage, frozen=True, kw_only=True):
    """Ask for the status of the federation."""


class ServerStatus(WireMessage, frozen=True, kw_only=True):
    server: Name
    leader: Name
    lease_token: Count
    since: float
    winnow_version: Text
    sites: Count
    jobs: dict[str, int]
    notices: list[Text] = []
    """What an operator should know about running jobs, one line each."""


class ReadAudit(WireMessage, frozen=True, kw_only=True):
    """Ask for entries of the server's audit log, after so many."""

    after: Count = 0


class AuditPage(WireMessage, frozen=True, kw_only=True):
    """As many entries as fit one message, and the signed head (JSON) of the log as it was before they were read."""

    lines: list[AuditLine]
    head: Annotated[bytes, Meta(max_length=MAX_TEXT)] = b""


class OpenLogin(WireMessage, frozen=True, kw_only=True):
    """Ask for an address that logs this person's browser in to the server's pages, once."""

    certificate: Annotated[bytes, Meta(max_length=MAX_TEXT)]
    """The one of this connection (PEM): the login ends when it expires or is revoked."""


class GetPagesAddress(WireMessage, frozen=True, kw_only=True):
    """Ask where the server serves its pages."""


class PagesAddress(WireMessage, frozen=True, kw_only=True):
    url: Text


class ListApplications(WireMessage, frozen=True, kw_only=True):
    """List those who applied for a kit."""


class ApplicationInfo(Struct, frozen=True, kw_only=True):
    application: Digest
    content: Annotated[bytes, Meta(max_length=MAX_TEXT)]
    """As the applicant signed it; whoever decides reads it anew."""
    state: Text
    """waiting, approved, refused or collected"""
    reason: Text
    received: float
    changed: float


class ApplicationList(WireMessage, frozen=True, kw_only=True):
    applications: list[ApplicationInfo]


class DecideApplication(WireMessage, frozen=True, kw_only=True):
    """Approve an application, with the kit that was made for it; or, without one, refuse it."""

    application: Digest
    package: Annotated[bytes, Meta(max_length=2**20)] = b""
    reason: Text = ""


class GetJobResult(WireMessage, frozen=True, kw_only=True):
    """Ask what there is to download of a job."""

    job: Name


class JobResult(WireMessage, frozen=True, kw_only=True):
    config: Text
    bundle: Blob
    events: Blob | None = None
    checkpoint: Blob | None = None
    output: dict[str, Blob] = {}


class FollowLog(WireMessage, frozen=True, kw_only=True):
    """Stream the log of a job from this line on, until the job ends or, without `wait`, until the last line."""

    job: Name
    first: Count = 0
    wait: bool = True


class LogLine(WireMessage, frozen=True, kw_only=True):
    number: Count
    at: float
    source: Name
    """server, or the name of a site"""
    kind: Text
    """log, event or site-lost"""
    text: Text


# Answers to all -------------------------------------------------------------------------------------------------------


class Acknowledgement(WireMessage, frozen=True, kw_only=True):
    """The request was carried out."""

    note: Text = ""


class RequestRefusal(WireMessage, frozen=True, kw_only=True, tag="Refusal", rename={"retry": "again"}):
    """Why a request was refused, in one line. `leader` is the endpoint to ask instead; `retry`: it may work later."""

    reason: Text
    leader: Text = ""
    retry: bool = False


Request: TypeAlias = (
    Hello
    | Poll
    | DeployResult
    | ControlResult
    | SubmitResult
    | GetUploadedSize
    | SubmitJob
    | ListJobs
    | AbortJob
    | ListSites
    | ControlSite
    | GetStatus
    | GetJobResult
    | ReadAudit
    | OpenLogin
    | GetPagesAddress
    | ListApplications
    | DecideApplication
)
Response: TypeAlias = (
    Welcome
    | SiteInstructions
    | UploadedSize
    | JobList
    | SiteList
    | ServerStatus
    | JobResult
    | AuditPage
    | PagesAddress
    | ApplicationList
    | Acknowledgement
    | RequestRefusal
)
