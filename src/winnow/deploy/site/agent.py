"""The agent of a site: it connects, asks for orders, and has them followed. It opens no port.

It may be killed at any moment. Orders are the same when they come twice; what must survive is in `SiteStateStore`
before it is acknowledged or told to anybody.
"""

import importlib.metadata
import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from winnow.core.errors import WinnowError
from winnow.deploy.sandbox.launch import OUTPUT_FILTER_MODULE, WORKER_MODULE
from winnow.deploy.sandbox.syscalls import drop_code_pages
from winnow.deploy.site.admission_control import AdmissionControl
from winnow.deploy.site.config import SiteConfig, redactor_for
from winnow.deploy.site.context import SiteContext
from winnow.deploy.site.hosted_job import HostedJob
from winnow.deploy.site.resource_pool import ResourcePool
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.site.uplink import Uplink
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
from winnow.deploy.wire.transport import CALL_SECONDS, ServerLink, Tls
from winnow.deploy.wire.transport_registry import connect

log = logging.getLogger(__name__)

STATE_FILE = "site.sqlite"
RETRY_SECONDS = 20.0
"""Seconds for which a single request is tried again and again; then a new session begins."""
RECONNECT_BACKOFF = Backoff(longest=1.0)
"""While the leader is looked for: the next one is there within seconds, and work stands still until it is found."""
SHUTDOWN_SECONDS = 10.0
"""Seconds that jobs have to end when the agent does."""


def connect_to_leader(kit: Kit) -> ServerLink:
    """The link to whichever of the project's servers leads."""
    urls = [each if "://" in each else f"grpc://{each}" for each in kit.endpoints]
    return ReconnectingLink(
        urls, lambda url: connect(url, Tls.of(kit)), backoff=RECONNECT_BACKOFF, patience=RETRY_SECONDS
    )


class Agent:
    """`run` returns when it is told to stop; `restart` then says whether somebody wants it to begin anew."""

    def __init__(
        self,
        kit: Kit,
        config: SiteConfig,
        link: ServerLink,
        *,
        worker: str = WORKER_MODULE,
        gate: str = OUTPUT_FILTER_MODULE,
        now: Callable[[], float] = time.time,
        backoff: Backoff = Backoff(first=0.5),  # noqa: B008 - frozen
    ) -> None:
        self.restart = False
        self._kit, self._config, self._now, self._backoff = kit, config, now, backoff
        self._link = link
        self._jobs: dict[str, HostedJob] = {}
        self._leaving: list[HostedJob] = []
        self._stopping = Event()
        self._received = 0
        self._polled = False
        """Whether the present session has been of use."""
        self._office = SiteContext(
            kit=kit,
            config=config,
            state=SiteStateStore(Path(config.state) / STATE_FILE),
            judge=AdmissionControl(kit, config),
            room=ResourcePool(config.resources, config.disk_mb),
            uplink=Uplink(link, redactor_for(config, kit.path)),
            audit=open_audit_log(kit.path / AUDIT_FILE, kit),
            worker=worker,
            gate=gate,
        )

    def run(self) -> None:
        self._office.audit.note("agent started", outcome=f"Winnow {_version()}")
        failures = 0
        while not self._stopping.is_set():
            try:
                self._polled = False
                welcome = self._greet()
                failures = 0
                self._obey(welcome)
            except (WinnowError, OSError) as error:
                if not self._stopping.is_set():
                    log.warning("%s; trying again", error)
                if not (
                    self._polled and isinstance(error, RequestRefusedError)
                ):  # a new leader does not know our session
                    self._stopping.wait(self._backoff.seconds(failures))
                failures += 1
        self._leave()

    def stop(self) -> None:
        """May be called by any thread, or by a signal."""
        self._stopping.set()
        self._link.close()

    def _greet(self) -> Welcome:
        hello = Hello(
            protocols=list(PROTOCOLS),
            winnow_version=_version(),
            data=sorted(self._config.data),
            resources=self._config.resources,
            clock=self._now(),
            jobs=self._office.state.jobs(),
            certificate=self._kit.certificate_pem,
        )
        welcome = self._link.call(hello)
        if not isinstance(welcome, Welcome):
            raise WireError(f"the server answered a greeting with {type(welcome).__name__}")
        if welcome.protocol not in PROTOCOLS:
            raise RequestRefusedError(
                f"the server speaks protocol {welcome.protocol}; this site speaks {PROTOCOLS[0]}: update Winnow here"
            )
        self._received = 0
        self._office.uplink.begin(welcome.session)
        log.info("connected; the project's server wants to hear from us every %g s", welcome.heartbeat)
        drop_code_pages()
        return welcome

    def _obey(self, welcome: Welcome) -> None:
        """Until the session ends, by an error, or because something could not be delivered."""
        while not self._stopping.is_set() and not self._office.uplink.lost:
            poll = Poll(session=welcome.session, received=self._received, free=self._office.room.free())
            orders = self._link.call(poll, timeout=welcome.heartbeat + CALL_SECONDS)
            if not isinstance(orders, SiteInstructions):
                raise WireError(f"the server answered a poll with {type(orders).__name__}")
            self._polled = True
            for number, order in enumerate(orders.instructions, orders.first_number):
                if number > self._received:
                    self._follow(order)
                    self._received = number
        if not self._stopping.is_set():
            raise UnreachableError("something was not delivered in this session")

    def _follow(self, order: SiteInstruction) -> None:
        """Have an order followed. What it changes for good is done on return: it is acknowledged then."""
        if isinstance(order, DeployJob):
            self._job(order.job).order(order)
        elif isinstance(order, AssignTask):
            self._assign(order)
        elif isinstance(order, CancelTasks):
            if order.job in self._jobs:
                self._jobs[order.job].cancel(order.tasks)
        elif isinstance(order, Settle):
            if order.job in self._jobs:
                self._jobs[order.job].cancel(order.ended_tasks)
            self._office.state.settle(order)
            if order.job in self._jobs:
                self._jobs[order.job].order(order)
        elif isinstance(order, StopJob):
            self._end(order)
        else:
            self._controlled(order)

    def _job(self, name: str) -> HostedJob:
        if name not in self._jobs:
            self._leaving = [each for each in self._leaving if each.is_alive()]
            before = [each for each in self._leaving if each.job == name]
            self._jobs[name] = HostedJob(self._office, name, after=before[-1] if before else None)
            self._jobs[name].start()
        return self._jobs[name]

    def _assign(self, order: AssignTask) -> None:
        """A job that we were told of before we were killed is deployed again first; of others we know nothing."""
        if order.job in self._jobs:
            self._jobs[order.job].order(order)
        elif (deploy := self._office.state.deployed(order.job)) is not None:
            self._job(order.job).order(deploy)
            self._job(order.job).order(order)
        else:
            reason = f"this site was never told of job {order.job}"
            log.warning("%s, but is asked to do its task %s", reason, order.task.id[:12])
            for client in order.task.clients:
                failed = ClientResult(
                    job=order.job, task=order.task.id, client=client, stage="admission", failure=reason
                )
                self._office.uplink.give(failed, None)

    def _end(self, order: StopJob) -> None:
        if order.job not in self._jobs and order.job not in self._office.state.jobs():
            return
        log.info("job %s is over here%s", order.job, f": {order.reason}" if order.reason else "")
        self._office.audit.note("job stopped", order.job, order.reason)
        job = self._job(order.job)
        del self._jobs[order.job]
        self._leaving.append(job)
        job.end(forget=True)

    def _controlled(self, order: ControlAgent) -> None:
        what = "restart" if order.restart else "stop"
        reason = self._office.judge.controllable()
        self._office.audit.note(f"agent told to {what}", outcome=f"refused: {reason}" if reason else "done")
        self._office.uplink.controlled(reason)
        if reason is not None:
            log.warning("told to %s from afar, and did not: %s", what, reason)
            return
        log.info("told to %s from afar", what)
        self.restart = order.restart
        self.stop()

    def _leave(self) -> None:
        """End all processes; what must be known next time is on the disk."""
        for job in self._jobs.values():
            job.end(forget=False)
        until = time.monotonic() + SHUTDOWN_SECONDS
        for job in [*self._jobs.values(), *self._leaving]:
            job.join(max(0.0, until - time.monotonic()))
        self._office.audit.note("agent stopped")
        self._office.audit.close()
        self._office.state.close()
        log.info("stopped")


def _version() -> str:
    return importlib.metadata.version("winnow")
