"""Tasks of running jobs on their way to sites, and replies on their way back."""

import asyncio
from collections.abc import Iterable

import msgspec

from winnow.deploy.server.job_log_writer import JobLogs
from winnow.deploy.server.reply_blob_folders import ReplyInboxes
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.site_instruction_delivery import SiteSession
from winnow.deploy.server.site_job_state import Participation, reply_digest
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.message_codec import MAX_MESSAGE
from winnow.deploy.wire.messages import (
    Acknowledgement,
    AssignTask,
    CancelTasks,
    ClientResult,
    Settle,
    SubmitResult,
    WireTask,
)

MAX_TASK_BYTES = MAX_MESSAGE - 4096
"""Bytes of a task, so that the message around it fits too."""


class TaskExchange:
    def __init__(self, hub: SiteHub, job_logs: JobLogs, inboxes: ReplyInboxes) -> None:
        self._hub = hub
        self._job_logs = job_logs
        self._inboxes = inboxes

    # From a job's runner to sites -------------------------------------------------------------------------------------

    def assign(self, site: str, job: str, task: WireTask) -> None:
        session, part = self._site(site, job)
        membership = self._hub.memberships[job]
        order = AssignTask(job=job, task=task)
        if (size := len(msgspec.msgpack.encode(order))) > MAX_TASK_BYTES:
            for client in task.clients:
                reason = f"the task is too large to send: {size} bytes; the limit is {MAX_TASK_BYTES}"
                membership.fail(task.id, client, reason)
            return
        part.assign(task)
        if part.exclusion_reason:
            membership.update()
        else:
            session.send(order)

    def withdraw(self, site: str, job: str, tasks: Iterable[str]) -> None:
        session, part = self._site(site, job)
        withdrawn = [task for task in tasks if part.withdraw(task)]
        if withdrawn:
            session.send(CancelTasks(job=job, tasks=withdrawn))

    def settle(self, site: str, order: Settle) -> None:
        """A round is committed; aggregated replies, and those to ended tasks, are no longer needed."""
        session, part = self._site(site, order.job)
        self._inboxes.discard(order.job, site, part.settle(order))
        if part.resumed:
            self._inboxes.discard_others(order.job, site, part.needed_blobs())
            part.resumed = False
        if order.tasks or order.ended_tasks:
            session.send(order)

    def acknowledged_round(self, site: str, job: str) -> int:
        """The last round such that the site has acknowledged it and all before it."""
        return self._site(site, job)[1].acknowledged_round

    def restart(self, site: str, job: str) -> None:
        """The job continues from its last committed round, and sends the tasks again that it still needs."""
        self._site(site, job)[1].clear_tasks()
        self._hub.memberships[job].update()

    # From a site to the job's runner ----------------------------------------------------------------------------------

    async def submit_result(self, peer: Peer, message: SubmitResult) -> Acknowledgement:
        """A reply: to a task that was sent to this site, for a client of that task, once."""
        self._hub.connection(peer, message.session)
        result = message.result
        part = self._hub.participation(peer, result.job)
        if (note := await self._check(peer, part, result)) is not None:
            return Acknowledgement(note=note)
        path = None
        try:
            if result.blob is not None:
                path = await asyncio.to_thread(self._inboxes.reply_path, peer.name, result.job, result.blob)
        except RequestRefusedError:
            self._resend(peer.name, part, result)
            raise
        membership = self._hub.memberships.get(result.job)
        if membership is not None and part.accept(result):  # else the task, or the job, ended meanwhile
            membership.source.reply_received(result, path)
        return Acknowledgement()

    async def _check(self, peer: Peer, part: Participation, result: ClientResult) -> str | None:
        """None if the reply is awaited; why it is ignored, if it is merely late or repeated. Else raises."""
        if part.exclusion_reason:
            return "this site is currently excluded"
        known = part.answered.get(result.task, {}).get(result.client)
        if known == reply_digest(result):
            return "already received"
        if known is not None:
            raise await self._reject(peer, result, "sent two different replies")
        if result.task in part.late_tasks:
            return "the task is no longer open"
        if result.task not in part.tasks and part.resumed:
            raise RequestRefusedError(
                f"job {result.job} resumed from its last committed round; the task will be sent again"
            )
        if result.task not in part.tasks:
            raise await self._reject(peer, result, "replied to a task that it was not sent")
        if result.client not in part.tasks[result.task].pending_clients:
            raise await self._reject(peer, result, "replied for a client that the task does not include")
        return None

    def _resend(self, site: str, part: Participation, result: ClientResult) -> None:
        """The reply's blob is missing, maybe since an older reply had the same one, and it was deleted with that."""
        if (open_task := part.tasks.get(result.task)) is not None:
            self._hub.sites[site].resend(AssignTask(job=result.job, task=open_task.task))

    async def _reject(self, peer: Peer, result: ClientResult, what: str) -> RequestRefusedError:
        reason = f"site {peer.name} {what} (job {result.job}, task {result.task[:12]}, client {result.client})"
        await self._job_logs.audit_request(peer, "result", result.job, f"rejected: {reason}")
        return RequestRefusedError(reason)

    def _site(self, site: str, job: str) -> tuple[SiteSession, Participation]:
        session = self._hub.sites[site]
        return session, session.participations[job]
