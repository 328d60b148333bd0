"""The agent of a site: it connects, polls for instructions, and has its jobs follow them. It opens no port.

It may be killed at any moment. An instruction may come twice to the same effect; what must survive is in
`SiteStateStore` before it is acknowledged or sent to anybody.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event

from winnow.core.errors import WinnowError
from winnow.core.installed_package import installed_version
from winnow.deploy.sandbox.child_entry_point import OUTPUT_FILTER_MODULE, WORKER_MODULE
from winnow.deploy.sandbox.linux_syscall_wrappers import drop_code_pages
from winnow.deploy.site.admission_control import AdmissionControl
from winnow.deploy.site.config import SiteConfig, redactor_for
from winnow.deploy.site.hosted_job import HostedJob
from winnow.deploy.site.redacting_uplink import Uplink
from winnow.deploy.site.resource_pool import ResourcePool
from winnow.deploy.site.shared_job_context import SiteContext
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.site.warm_worker import WarmWorker
from winnow.deploy.trust.audit_log_file import AUDIT_FILE, open_audit_log
from winnow.deploy.trust.kit import Kit
from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError, WireError
from winnow.deploy.wire.messages import (
    PROTOCOLS,
    AssignTask,
    CancelTasks,
    ClientResult,
    ControlAgent,
    DeployJob,
    Hello,
    Poll,
    Settle,
    SiteInstruction,
    SiteInstructions,
    StopJob,
    Welcome,
)
from winnow.deploy.wire.reconnecting_link import Backoff, ReconnectingLink
from winnow.deploy.wire.transport_interface import CALL_SECONDS, ServerLink, Tls
from winnow.deploy.wire.transport_registry import open_link

log = logging.getLogger(__name__)

STATE_FILE = "site.sqlite"
RETRY_SECONDS = 20.0
"""Seconds for which a single request is retried; then a new session begins."""
RECONNECT_BACKOFF = Backoff(longest=1.0)
"""While no leader is found: the next one is there within seconds, and work stands still until then."""
SHUTDOWN_SECONDS = 10.0
"""Seconds that jobs have to end when the agent stops."""


def connect_to_leader(kit: Kit, retry_seconds: float = RETRY_SECONDS) -> ServerLink:
    """The link to whichever of the project's servers leads; requests are retried for so many seconds."""
    urls = [each if "://" in each else f"grpc://{each}" for each in kit.endpoints]
    return ReconnectingLink(
        urls, lambda url: open_link(url, Tls.of(kit)), backoff=RECONNECT_BACKOFF, retry_seconds=retry_seconds
    )


def hello_of(kit: Kit, config: SiteConfig, clock: float, jobs: list[str], *, check: bool = False) -> Hello:
    """How a site introduces itself."""
    return Hello(
        protocols=list(PROTOCOLS),
        winnow_version=installed_version(),
        data=sorted([*config.data, *config.tables]),
        resources=config.resources,
        clock=clock,
        jobs=jobs,
        certificate=kit.certificate_pem,
        check=check,
    )


class Agent:
    """`run` returns after `stop`; `restart` then says whether a new agent is to take its place."""

    def __init__(
        self,
        kit: Kit,
        config: SiteConfig,
        link: ServerLink,
        *,
        worker: str = WORKER_MODULE,
        output_filter: str = OUTPUT_FILTER_MODULE,
        now: Callable[[], float] = time.time,
        backoff: Backoff = Backoff(first=0.5),  # noqa: B008 - frozen
    ) -> None:
        self.restart = False
        self._kit, self._config, self._now, self._backoff = kit, config, now, backoff
        self._link = link
        self._jobs: dict[str, HostedJob] = {}
        self._stopping_jobs: list[HostedJob] = []
        self._stopping = Event()
        self._received = 0
        self._polled = False
        """Whether a poll of the present session was answered."""
        with ExitStack() as stack:
            self._context = SiteContext(
                kit=kit,
                config=config,
                state=stack.enter_context(closing(SiteStateStore(Path(config.state) / STATE_FILE))),
                admission=AdmissionControl(kit, config),
                resources=ResourcePool(config.resources, config.disk_mb),
                uplink=Uplink(link, redactor_for(config, kit.path)),
                audit=stack.enter_context(closing(open_audit_log(kit.path / AUDIT_FILE, kit))),
                warm_worker=WarmWorker(),
                worker=worker,
                output_filter=output_filter,
            )
            stack.pop_all()  # `run` closes them

    def run(self) -> None:
        try:
            self._follow_server()
        finally:
            self._shut_down()

    def _follow_server(self) -> None:
        self._context.audit.note("agent started", outcome=f"Winnow {installed_version()}")
        if self._config.tables:
            self._context.warm_worker.preload()
        failures = 0
        while not self._stopping.is_set():
            try:
                self._polled = False
                welcome = self._handshake()
                failures = 0
                self._poll_loop(welcome)
            except (WinnowError, OSError) as error:
                if not self._stopping.is_set():
                    log.warning("%s; reconnecting", error)
                new_leader = self._polled and isinstance(error, RequestRefusedError)  # it does not know our session
                if not new_leader:
                    self._stopping.wait(self._backoff.seconds(failures))
                failures += 1

    def stop(self) -> None:
        """May be called by any thread or by a signal, twice, and after the agent has stopped."""
        self._stopping.set()
        self._link.close()

    def _handshake(self) -> Welcome:
        hello = hello_of(self._kit, self._config, self._now(), self._context.state.jobs())
        welcome = self._link.call(hello)
        if not isinstance(welcome, Welcome):
            raise WireError(f"the server answered Hello with {type(welcome).__name__}; expected Welcome")
        if welcome.protocol not in PROTOCOLS:
            raise RequestRefusedError(
                f"the server speaks protocol {welcome.protocol}; this site speaks {PROTOCOLS[0]}: update Winnow here"
            )
        self._received = 0
        self._context.uplink.start_session(welcome.session)
        log.info("connected to the server; heartbeat interval %g s", welcome.heartbeat)
        drop_code_pages()
        return welcome

    def _poll_loop(self, welcome: Welcome) -> None:
        """Until the session ends: by an error, or because a message could not be delivered."""
        while not self._stopping.is_set() and not self._context.uplink.delivery_failed:
            poll = Poll(session=welcome.session, received=self._received, free=self._context.resources.free())
            answer = self._link.call(poll, timeout=welcome.heartbeat + CALL_SECONDS)
            if not isinstance(answer, SiteInstructions):
                raise WireError(f"the server answered Poll with {type(answer).__name__}; expected SiteInstructions")
            self._polled = True
            for number, instruction in enumerate(answer.instructions, answer.first_number):
                if number > self._received:
                    self._handle(instruction)
                    self._received = number
        if not self._stopping.is_set():
            raise UnreachableError("a message to the server could not be delivered")

    def _handle(self, instruction: SiteInstruction) -> None:
        """What the instruction changes for good is done on return: it is acknowledged then."""
        match instruction:
            case DeployJob(job=job):
                self._job(job).enqueue(instruction)
            case AssignTask():
                self._assign(instruction)
            case CancelTasks(job=job, tasks=tasks):
                if job in self._jobs:
                    self._jobs[job].cancel(tasks)
            case Settle(job=job, ended_tasks=ended):
                if job in self._jobs:
                    self._jobs[job].cancel(ended)
                self._context.state.settle(instruction)
                if job in self._jobs:
                    self._jobs[job].enqueue(instruction)
            case StopJob():
                self._stop_job(instruction)
            case ControlAgent(restart=restart):
                self._handle_control(restart=restart)

    def _job(self, name: str) -> HostedJob:
        if name not in self._jobs:
            self._stopping_jobs = [each for each in self._stopping_jobs if each.is_alive()]
            before = [each for each in self._stopping_jobs if each.job == name]
            self._jobs[name] = HostedJob(self._context, name, after=before[-1] if before else None)
            self._jobs[name].start()
        return self._jobs[name]

    def _assign(self, assigned: AssignTask) -> None:
        """A job that was deployed before this agent started is deployed again first."""
        if assigned.job in self._jobs:
            self._jobs[assigned.job].enqueue(assigned)
        elif (deploy := self._context.state.deployment(assigned.job)) is not None:
            self._job(assigned.job).enqueue(deploy)
            self._job(assigned.job).enqueue(assigned)
        else:
            task, reason = assigned.task, f"this site does not know job {assigned.job}"
            log.warning("%s; rejected its task %s", reason, task.id[:12])
            for client in task.clients:
                self._context.uplink.submit_result(
                    ClientResult(job=assigned.job, task=task.id, client=client, stage="admission", failure=reason)
                )

    def _stop_job(self, stop: StopJob) -> None:
        if stop.job not in self._jobs and stop.job not in self._context.state.jobs():
            return
        log.info("job %s stopped%s", stop.job, f": {stop.reason}" if stop.reason else "")
        self._context.audit.note("job stopped", stop.job, stop.reason)
        job = self._job(stop.job)
        del self._jobs[stop.job]
        self._stopping_jobs.append(job)
        job.end(forget=True)

    def _handle_control(self, *, restart: bool) -> None:
        what = "restart" if restart else "stop"
        reason = self._context.admission.remote_control_rejection()
        self._context.audit.note(f"remote request to {what}", outcome=f"rejected: {reason}" if reason else "accepted")
        self._context.uplink.report_control_result(reason, restart=restart)
        if reason is not None:
            log.warning("remote request to %s rejected: %s", what, reason)
            return
        log.info("remote request to %s accepted", what)
        self.restart = restart
        self.stop()

    def _shut_down(self) -> None:
        """End all jobs; what the next agent must know is on the disk."""
        for job in self._jobs.values():
            job.end(forget=False)
        until = time.monotonic() + SHUTDOWN_SECONDS
        for job in [*self._jobs.values(), *self._stopping_jobs]:
            job.join(max(0.0, until - time.monotonic()))
        with closing(self._context.state), closing(self._context.audit) as audit:
            self._context.warm_worker.close()
            audit.note("agent stopped")
        log.info("agent stopped")
