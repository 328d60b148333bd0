"""Messages between a job's process and its parent. Paths are absolute, and inside the job's folder."""

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

from winnow.analytics.permissions import Permission, Reveal
from winnow.deploy.wire.messages import ClientResult, Count, DataDescription, Digest, Name, WireMessage, WireTask
from winnow.learn.party_signing_interface import UPDATE

RoundNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
"""What a column of a database holds."""

# The server and its runner --------------------------------------------------------------------------------------------


class JobSite(WireMessage, frozen=True, kw_only=True):
    """A site of the job, and the number of its first client."""

    site: str
    first_client: int
    data: DataDescription


class StartJob(WireMessage, frozen=True, kw_only=True):
    """Run the job from its last committed round on (0: from the start)."""

    job: str
    folder: str
    bundle: str
    checkpoint: str | None
    round: int
    members: list[JobSite]
    data: dict[str, dict[str, Any]] = {}
    """The server's own named data, as its configuration describes them: reference and test sets."""
    events: str | None = None
    """The event lines of all committed rounds."""


class ExchangeMessage(WireMessage, frozen=True, kw_only=True):
    """Base of the messages that an exchange with clients waits for."""


class ResultArrived(ExchangeMessage, frozen=True, kw_only=True):
    """A client's result; its blob is at `path`."""

    result: ClientResult
    path: str | None = None


class PauseDeadlines(ExchangeMessage, frozen=True, kw_only=True):
    """Too few sites participate, or no longer too few: deadlines stand still meanwhile."""

    on: bool


class RoundCommitted(WireMessage, frozen=True, kw_only=True):
    """The round is in the database."""

    round: int


class StopRunner(WireMessage, frozen=True, kw_only=True):
    reason: str


ToRunner: TypeAlias = StartJob | ResultArrived | PauseDeadlines | RoundCommitted | StopRunner


class DispatchTask(WireMessage, frozen=True, kw_only=True):
    """Assign a task to a site. The blobs of its parts are in the job's folder as blobs/<digest>."""

    site: str
    task: WireTask


class WithdrawTasks(WireMessage, frozen=True, kw_only=True):
    """The results of these tasks are no longer needed."""

    site: str
    tasks: list[str]


class CommitRound(WireMessage, frozen=True, kw_only=True):
    """A round has ended: commit it, then confirm. `settled` are the clients whose replies were aggregated, by site and
    task; `ended_tasks` are by site.
    """

    round: RoundNumber
    rounds: RoundNumber
    checkpoint: str
    lines: list[str]
    settled: dict[Name, dict[Digest, list[Count]]]
    ended_tasks: dict[Name, list[Digest]]
    metrics: dict[str, dict[str, float]]


class RunnerLogLine(WireMessage, frozen=True, kw_only=True):
    """A line for the job's log."""

    line: str


class JobFinished(WireMessage, frozen=True, kw_only=True):
    """The job has finished; its files besides the checkpoint, and the events after the last round."""

    output: dict[str, str] = {}
    lines: list[str] = []


class JobFailed(WireMessage, frozen=True, kw_only=True):
    """The job cannot continue, and a restart would not help."""

    reason: str


FromRunner: TypeAlias = DispatchTask | WithdrawTasks | CommitRound | RunnerLogLine | JobFinished | JobFailed

# A site and its worker ------------------------------------------------------------------------------------------------


class QuestionTerms(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the site's rule says of the job's question, and the seed of the site's noise in its answer."""

    allow: list[Permission]
    minimum: int
    rows: int
    owners: int
    reveal: Reveal
    noise_delta: float | None
    """The δ at which its budget counts ε; None where no noise is demanded."""
    noise_seed: bytes
    epsilon: float | None = None
    """The author's budget, and what is left of it, where the question is about that."""
    epsilon_left: float | None = None


class PrepareJob(WireMessage, frozen=True, kw_only=True):
    """Prepare a job with these data (a [data.NAME] or [tables.NAME] table of the site), the site's mandatory filters,
    whether its policy lets confusion matrices out, which evidence on the data it shares, and how it answers a question
    (a helper does not, and has no data).
    """

    job: str
    folder: str
    bundle: str
    data: dict[str, Any]
    filters: list[dict[str, Any]] = []
    confusion_matrix: bool = False
    share_evidence: list[str] = []
    question: QuestionTerms | None = None
    first_client: int | None = None


class AssignClientNumbers(WireMessage, frozen=True, kw_only=True):
    """The number of this site's first client."""

    first_client: int


class SitePublicKey(WireMessage, frozen=True, kw_only=True):
    """A site of the job with a valid certificate, its clients, and its public key (DER)."""

    site: str
    first_client: int
    client_count: int
    key: bytes


class RunTask(WireMessage, frozen=True, kw_only=True):
    """Run a task; with the files of its parts and of its clients' state."""

    task: WireTask
    parts: dict[str, str] = {}
    client_state: dict[int, str] = {}
    site_keys: list[SitePublicKey] = []
    """Of the sites whose signatures are valid now."""


class StopWorker(WireMessage, frozen=True, kw_only=True):
    """End the process."""


class JobReady(WireMessage, frozen=True, kw_only=True):
    data: DataDescription


class TaskResult(WireMessage, frozen=True, kw_only=True):
    """One client's result (without its blob), the file of its payload, and the file of its new state."""

    result: ClientResult
    payload: str | None = None
    new_client_state: str | None = None
    volatile: bool = False
    """The result holds only while this process lives (keys of a protocol): it must not be sent later."""


class CannotRunJob(WireMessage, frozen=True, kw_only=True):
    """The job cannot run here."""

    reason: str


class WorkerLogLine(WireMessage, frozen=True, kw_only=True):
    """A line for the site's own log. It never leaves the site."""

    line: str


class SignRequest(WireMessage, frozen=True, kw_only=True):
    """Sign a client's statement in the round of the present task; no process of a job holds a key."""

    client: int
    content: bytes
    ballot: bytes = b""
    """If given, no other content is ever signed for it."""


class SignResponse(WireMessage, frozen=True, kw_only=True):
    signature: bytes = b""
    refused: str = ""


class ReleaseRequest(WireMessage, frozen=True, kw_only=True):
    """Record for good that something of a client leaves, masked or noisy, in the round of the present task. What left
    in this round with the note `instead_of`, if given, is replaced.
    """

    client: int
    kind: str = UPDATE
    note: bytes = b""
    instead_of: bytes = b""


class ReleaseNoteRequest(WireMessage, frozen=True, kw_only=True):
    """Ask for the note with which this client's update left in this round."""

    client: int


class ReleaseNoteResponse(WireMessage, frozen=True, kw_only=True):
    note: bytes = b""


class ReleaseResponse(WireMessage, frozen=True, kw_only=True):
    """How often it has left, this time included; 0: it must not leave, as it left in this round or a later one."""

    times: int


class SpendRequest(WireMessage, frozen=True, kw_only=True):
    """Book what the job's question costs its author, before anything with noise leaves."""


class SpendResponse(WireMessage, frozen=True, kw_only=True):
    refused: str = ""
    """Why nothing may leave, if so."""


class FilterResult(WireMessage, frozen=True, kw_only=True):
    """To an output filter: pass a result of the job's own code through the site's filters. The task is for its client
    alone.
    """

    task: RunTask
    result: TaskResult


ToWorker: TypeAlias = (
    PrepareJob
    | AssignClientNumbers
    | RunTask
    | SignResponse
    | ReleaseResponse
    | ReleaseNoteResponse
    | SpendResponse
    | FilterResult
    | StopWorker
)
FromWorker: TypeAlias = (
    JobReady
    | TaskResult
    | CannotRunJob
    | WorkerLogLine
    | SignRequest
    | ReleaseRequest
    | ReleaseNoteRequest
    | SpendRequest
)
AgentRequest: TypeAlias = SignRequest | ReleaseRequest | ReleaseNoteRequest | SpendRequest
"""What only the agent can do, which holds the site's key and records; a worker waits for the response."""
AgentResponse: TypeAlias = SignResponse | ReleaseResponse | ReleaseNoteResponse | SpendResponse
