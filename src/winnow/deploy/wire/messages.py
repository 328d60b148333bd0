"""The messages. Each is a frozen struct, told apart by its tag; what does not fit its type is refused when it is read.

Three conversations use them: a site with its server (it calls, the server answers), a person with a server, and a
server or site with the process of a job (`winnow.deploy.jobs`). Arrays never travel in messages: they are *blobs*,
files of safetensors that are named by the digest of their contents and move in chunks.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

PROTOCOLS = (2,)
"""The versions of these messages that this Winnow speaks."""

MAX_TEXT = 65_536

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
"""Names of sites, jobs, data: safe as the name of a file."""
Digest: TypeAlias = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
"""SHA-256 of a blob's contents."""
Text: TypeAlias = Annotated[str, Meta(max_length=MAX_TEXT)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]


class WireMessage(Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Whatever is sent."""


class Blob(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file's contents, by name."""

    digest: Digest
    size: Count


class Resources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a site has free, or what a job asks of each site."""

    cpus: Annotated[float, Meta(ge=0)] = 1.0
    memory_mb: Count = 512
    gpus: Count = 0


class DataDescription(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job may know of a site's data: how many clients hold how many samples, of which shape and kind."""

    sizes: list[Count]
    own_test_sizes: list[Count] = []
    sample_shape: list[Count] = []
    outputs: Count = 0
    """Classes of a classification, targets of a regression."""
    classification: bool = True
    tokens: bool = False
    columns: Text = ""
    """A digest of the features' names in their order, where they have names; nobody can tell names by it."""
    labels: Text = ""
    """A digest of the classes' labels in the order of their numbers, likewise."""


class WireTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task for some of a site's clients. Its `id` is the digest of everything else, so that a task delivered twice,
    even by another server, is known to be the same.
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
    """One client's outcome of a task: a blob with its parts, or why there is none."""

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


class Hello(WireMessage, frozen=True, kw_only=True):
    """A site introduces itself. Its name is that of its certificate; clocks are compared."""

    protocols: list[int]
    winnow: Text
    data: list[Name]
    resources: Resources
    now: float
    jobs: list[Name] = []
    """Those that it takes part in; the server has it stop those that are over or that it never knew."""
    certificate: bytes = b""
    """For sites that want to seal letters to this one (PEM; vouched for by the project's authority)."""


class Welcome(WireMessage, frozen=True, kw_only=True):
    protocol: int
    session: Name
    heartbeat: Seconds
    """Poll at least so often."""


class Poll(WireMessage, frozen=True, kw_only=True):
    """What a site asks all the time; the server answers when there is something to do, or after a heartbeat.

    Orders are numbered; those up to `received` need not be sent again.
    """

    session: Name
    received: Count
    free: Resources


class PeerSite(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site of the same job: which clients are its, and the certificate to seal letters with."""

    site: Name
    clients_from: Count
    clients: Count
    certificate: bytes


class DeployJob(WireMessage, frozen=True, kw_only=True):
    """Prepare for a job: judge it by the site's policy, start its process, and say how it went (`DeployResult`)."""

    job: Name
    bundle: Blob
    submitter: Name
    organisation: Text
    role: Text
    resources: Resources
    clients_from: Count | None = None
    """The number of this site's first client, once it is known."""
    neighbours: list[PeerSite] = []
    """All sites of the job, once their clients are numbered and where letters go between them."""


class AssignTask(WireMessage, frozen=True, kw_only=True):
    job: Name
    task: WireTask


class CancelTasks(WireMessage, frozen=True, kw_only=True):
    """Nobody waits for these tasks any more."""

    job: Name
    tasks: list[Digest]


class Settle(WireMessage, frozen=True, kw_only=True):
    """A round is committed. What the clients listed with a task proposed to keep is kept, and their replies are needed
    no more. Tasks that are `over` have ended: what others proposed for them is forgotten. Other tasks go on.
    """

    job: Name
    round: Count
    tasks: dict[Digest, list[Count]]
    over: list[Digest] = []


class StopJob(WireMessage, frozen=True, kw_only=True):
    """The job is over at this site; its process ends, and what it kept is deleted."""

    job: Name
    reason: Text = ""


class ControlAgent(WireMessage, frozen=True, kw_only=True):
    """A person wants the site's agent to stop or to start anew."""

    restart: bool


SiteInstruction: TypeAlias = DeployJob | AssignTask | CancelTasks | Settle | StopJob | ControlAgent


class SiteInstructions(WireMessage, frozen=True, kw_only=True):
    first: Count
    """The number of the first of these orders."""
    orders: list[SiteInstruction]


class DeployResult(WireMessage, frozen=True, kw_only=True):
    """Whether a site takes part in a job, and with which data."""

    session: Name
    job: Name
    accepted: bool
    reason: Text = ""
    data: DataDescription | None = None


class SubmitResult(WireMessage, frozen=True, kw_only=True):
    """A site hands over an answer; its blob has been put before."""

    session: Name
    answer: ClientResult


class SiteReport(WireMessage, frozen=True, kw_only=True):
    """What a site wants to be seen: lines of a job's log, metrics while it works."""

    session: Name
    job: Name
    lines: list[Text] = []
    metrics: dict[str, float] = {}


# Blobs ----------------------------------------------------------------------------------------------------------------


class GetUploadedSize(WireMessage, frozen=True, kw_only=True):
    """How much of this blob do you have already?"""

    job: Name
    blob: Blob


class FetchBlob(WireMessage, frozen=True, kw_only=True):
    """Stream the blob from `offset` on."""

    job: Name
    blob: Blob
    offset: Count = 0


class PutBlob(WireMessage, frozen=True, kw_only=True):
    """The head of a stream of chunks: the blob from `offset` on."""

    job: Name
    blob: Blob
    offset: Count = 0


class UploadedSize(WireMessage, frozen=True, kw_only=True):
    """So much of a blob is there."""

    size: Count


# A person and a server ------------------------------------------------------------------------------------------------


class SubmitJob(WireMessage, frozen=True, kw_only=True):
    """A new job; its bundle has been put under this name. Submitting the same again changes nothing."""

    job: Name
    bundle: Blob


class ListJobs(WireMessage, frozen=True, kw_only=True):
    """All jobs, or one."""

    job: Name | None = None


class AbsentSite(Struct, frozen=True, kw_only=True):
    """A site that is left out of a running job at present."""

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
    out: list[AbsentSite] = []


class JobList(WireMessage, frozen=True, kw_only=True):
    jobs: list[JobInfo]


class AbortJob(WireMessage, frozen=True, kw_only=True):
    job: Name
    reason: Text = ""


class ListSites(WireMessage, frozen=True, kw_only=True):
    """All sites."""


class SiteInfo(Struct, frozen=True, kw_only=True):
    site: Name
    organisation: Text
    connected: bool
    seen: float
    winnow: Text
    data: list[Name]
    free: Resources
    jobs: list[Name]


class SiteList(WireMessage, frozen=True, kw_only=True):
    sites: list[SiteInfo]


class ControlSite(WireMessage, frozen=True, kw_only=True):
    site: Name
    restart: bool


class GetStatus(WireMessage, frozen=True, kw_only=True):
    """How is the federation?"""


class ServerStatus(WireMessage, frozen=True, kw_only=True):
    server: Name
    leader: Name
    token: Count
    since: float
    winnow: Text
    sites: Count
    jobs: dict[str, int]
    notices: list[Text] = []
    """What an operator should know of running jobs, a line each."""


class GetJobResult(WireMessage, frozen=True, kw_only=True):
    """What is there of a job to download?"""

    job: Name


class JobResult(WireMessage, frozen=True, kw_only=True):
    config: Text
    bundle: Blob
    events: Blob | None = None
    checkpoint: Blob | None = None
    output: dict[str, Blob] = {}


class FollowLog(WireMessage, frozen=True, kw_only=True):
    """Stream a job's lines from this number on, until it ends or (unless `wait`) there are no more."""

    job: Name
    first: Count = 0
    wait: bool = True


class LogLine(WireMessage, frozen=True, kw_only=True):
    number: Count
    at: float
    source: Name
    """server, or a site's name"""
    kind: Text
    """log, event or metric"""
    text: Text


# Answers to all -------------------------------------------------------------------------------------------------------


class Acknowledgement(WireMessage, frozen=True, kw_only=True):
    """So be it."""

    note: Text = ""


class RequestRefusal(WireMessage, frozen=True, kw_only=True):
    """No, and why, in one line. `leader` says whom to ask instead; `again` that it may work later."""

    reason: Text
    leader: Text = ""
    again: bool = False


Request: TypeAlias = (
    Hello
    | Poll
    | DeployResult
    | SubmitResult
    | SiteReport
    | GetUploadedSize
    | SubmitJob
    | ListJobs
    | AbortJob
    | ListSites
    | ControlSite
    | GetStatus
    | GetJobResult
)
Response: TypeAlias = (
    Welcome
    | SiteInstructions
    | UploadedSize
    | JobList
    | SiteList
    | ServerStatus
    | JobResult
    | Acknowledgement
    | RequestRefusal
)
