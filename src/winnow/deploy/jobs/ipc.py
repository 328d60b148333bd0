"""What a job's process and its parent say to each other. Paths are absolute, and inside the job's folder."""

from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from winnow.deploy.wire.messages import ClientResult, Count, DataDescription, Digest, Name, WireMessage, WireTask
from winnow.learn.party_identities import UPDATE

RoundNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
"""What a column of a database holds."""

# The server and its runner --------------------------------------------------------------------------------------------


class JobSite(WireMessage, frozen=True, kw_only=True):
    """A site that takes part, and the number of its first client."""

    site: str
    clients_from: int
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
    """What an exchange with clients listens for."""


class ResultArrived(ExchangeMessage, frozen=True, kw_only=True):
    """A client's answer; its blob lies at `path`."""

    answer: ClientResult
    path: str | None = None


class PauseDeadlines(ExchangeMessage, frozen=True, kw_only=True):
    """Too few sites take part, or no longer so: deadlines stand still meanwhile."""

    on: bool


class RoundCommitted(WireMessage, frozen=True, kw_only=True):
    """The round stands in the database."""

    round: int


class StopRunner(WireMessage, frozen=True, kw_only=True):
    reason: str


ToRunner: TypeAlias = StartJob | ResultArrived | PauseDeadlines | RoundCommitted | StopRunner


class DispatchTask(WireMessage, frozen=True, kw_only=True):
    """Have a site do a task. The blobs of its parts lie in the job's folder as blobs/<digest>."""

    site: str
    task: WireTask


class WithdrawTasks(WireMessage, frozen=True, kw_only=True):
    """Nobody waits for these tasks any more."""

    site: str
    tasks: list[str]


class CommitRound(WireMessage, frozen=True, kw_only=True):
    """A round is over: make it permanent, then say so. `settled` are the clients whose replies were folded, by site and
    task; `over` the tasks, by site, that have come to their end.
    """

    round: RoundNumber
    rounds: RoundNumber
    checkpoint: str
    lines: list[str]
    settled: dict[Name, dict[Digest, list[Count]]]
    over: dict[Name, list[Digest]]
    metrics: dict[str, dict[str, float]]


class RunnerLogLine(WireMessage, frozen=True, kw_only=True):
    """A line for the job's log."""

    line: str


class JobFinished(WireMessage, frozen=True, kw_only=True):
    """The job is done; these files are its output besides the checkpoint, these lines events after the last round."""

    output: dict[str, str] = {}
    lines: list[str] = []


class JobFailed(WireMessage, frozen=True, kw_only=True):
    """The job cannot go on, and a new start would not help."""

    reason: str


FromRunner: TypeAlias = DispatchTask | WithdrawTasks | CommitRound | RunnerLogLine | JobFinished | JobFailed

# A site and its worker ------------------------------------------------------------------------------------------------


class PrepareJob(WireMessage, frozen=True, kw_only=True):
    """Get ready for a job with these data (a [data.NAME] table of the site) and filters that the site insists on."""

    job: str
    folder: str
    bundle: str
    data: dict[str, Any]
    filters: list[dict[str, Any]] = []
    clients_from: int | None = None
    threads: int = 1
    own_code: bool = True
    """False: leave the job's own files alone (a gate)."""


class AssignClientNumbers(WireMessage, frozen=True, kw_only=True):
    """The number of this site's first client."""

    clients_from: int


class SitePublicKey(WireMessage, frozen=True, kw_only=True):
    """A site of the job whose certificate counts, its clients, and its public key (DER)."""

    site: str
    clients_from: int
    clients: int
    key: bytes


class RunTask(WireMessage, frozen=True, kw_only=True):
    """Answer a task; files of its parts, and of what its clients keep."""

    task: WireTask
    parts: dict[str, str] = {}
    client_state: dict[int, str] = {}
    parties: list[SitePublicKey] = []
    """Whose signatures count now."""


class StopWorker(WireMessage, frozen=True, kw_only=True):
    """There is nothing more to do."""


class JobReady(WireMessage, frozen=True, kw_only=True):
    data: DataDescription


class TaskResult(WireMessage, frozen=True, kw_only=True):
    """One client's answer (without its blob), the file of its payload, and the file of what it proposes to keep."""

    answer: ClientResult
    payload: str | None = None
    new_client_state: str | None = None
    volatile: bool = False
    """The answer holds only while this process lives (keys of a protocol): it is not to be reused."""


class CannotRunJob(WireMessage, frozen=True, kw_only=True):
    """The job cannot be done here."""

    reason: str


class WorkerLogLine(WireMessage, frozen=True, kw_only=True):
    """A line for the site's own log, which nobody else sees."""

    line: str


class Measured(WireMessage, frozen=True, kw_only=True):
    metrics: dict[str, float]


class SignRequest(WireMessage, frozen=True, kw_only=True):
    """Sign what a client of ours says in the round of the task under way; no process of a job holds a key."""

    client: int
    content: bytes
    ballot: bytes = b""
    """If given, this and nothing else is ever signed for it."""


class SignResponse(WireMessage, frozen=True, kw_only=True):
    signature: bytes = b""
    refused: str = ""


class ReleaseRequest(WireMessage, frozen=True, kw_only=True):
    """What a client made in the round of the task under way leaves, masked or noisy: note that, for good."""

    client: int
    what: str = UPDATE
    note: bytes = b""
    instead_of: bytes = b""


class ReleaseNoteRequest(WireMessage, frozen=True, kw_only=True):
    """With which note did this client's update of this round leave?"""

    client: int


class ReleaseNoteResponse(WireMessage, frozen=True, kw_only=True):
    note: bytes = b""


class ReleaseResponse(WireMessage, frozen=True, kw_only=True):
    """How often such has left, this time included; 0: it must not, for it had in this round or a later one."""

    times: int

    @property
    def first(self) -> bool:
        return self.times > 0


class FilterResult(WireMessage, frozen=True, kw_only=True):
    """To a gate: pass this answer, made by a process that runs the job's own code, through the site's filters.

    The order is for its client alone.
    """

    order: RunTask
    did: TaskResult


ToWorker: TypeAlias = (
    PrepareJob
    | AssignClientNumbers
    | RunTask
    | SignResponse
    | ReleaseResponse
    | ReleaseNoteResponse
    | FilterResult
    | StopWorker
)
FromWorker: TypeAlias = (
    JobReady
    | TaskResult
    | CannotRunJob
    | RunnerLogLine
    | WorkerLogLine
    | Measured
    | SignRequest
    | ReleaseRequest
    | ReleaseNoteRequest
)
