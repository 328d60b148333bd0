"""The pages of a federation: jobs and why they wait, logs, sites, the audit log, privacy budgets."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from msgspec.structs import replace

from winnow.analytics.answers import answer_errors
from winnow.analytics.budget_question import budget_text
from winnow.core import WinnowError
from winnow.core.untrusted_text import one_line
from winnow.deploy.client.fetched_audit import CheckedAudit
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import JobInfo, SiteInfo
from winnow.report.markup import (
    MarkupCell,
    TableCell,
    bullet_list,
    card,
    cards,
    html_table,
    link_cell,
    paragraph,
    searchable_table,
    section,
)
from winnow.report.number_format import MISSING
from winnow.web.federation_view import FederationView, JobLog, has_ended
from winnow.web.live_stream import Look, live_response
from winnow.web.page_layout import NavigationLink, PageSet, page_response

LIVE_SECONDS = 3.0
SHOWN_AT_FIRST, AUDIT_SHOWN = 200, 1_000

ViewOf: TypeAlias = Callable[[Request], FederationView]
"""The federation as the person who asks sees it."""
PartyName: TypeAlias = Annotated[str, Path(max_length=100, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\z")]
"""Of a job or a site, as the wire has them."""


def federation_pages(view_of: ViewOf) -> PageSet:
    """Of a federation, as the person who asks may see it."""
    router = APIRouter()

    @router.get("/")
    def job_list(request: Request) -> Response:
        view = view_of(request)
        body = _status(view) + _job_table(view.jobs())
        return page_response(
            request, title="Jobs", lead=_lead(view), body=f'<div id="jobs" data-live="/live">{body}</div>'
        )

    @router.get("/live")
    def job_list_changes(request: Request) -> Response:
        return live_response(request, live_changes(view_of(request).jobs), LIVE_SECONDS)

    @router.get("/jobs/{name}")
    def one_job(request: Request, name: PartyName) -> Response:
        view = view_of(request)
        job, log = view.job(name), view.log(name)
        live = "" if has_ended(job) else f' data-live="/jobs/{escape(name)}/live"'
        body = f'<div id="job"{live}>{_job(view, job)}{_log(log)}</div>'
        return page_response(request, title=one_line(job.job), lead=_job_lead(job), body=body)

    @router.get("/jobs/{name}/live")
    def job_changes(request: Request, name: PartyName) -> Response:
        view = view_of(request)
        return live_response(request, live_changes(lambda: (view.job(name), view.log(name).next)), LIVE_SECONDS)

    @router.get("/sites")
    def site_list(request: Request) -> Response:
        view = view_of(request)
        table = f'<div id="sites" data-live="/sites/live">{_site_table(view, view.sites())}</div>'
        return page_response(request, title="Sites", lead=_lead(view), body=table)

    @router.get("/sites/live")
    def site_changes(request: Request) -> Response:
        """Every look is another time at which sites were seen; that alone is no news."""
        view = view_of(request)
        return live_response(
            request, live_changes(lambda: [replace(site, last_seen=0.0) for site in view.sites()]), LIVE_SECONDS
        )

    @router.get("/audit")
    def audit_log(request: Request) -> Response:
        view = view_of(request)
        checked = view.audit()
        return page_response(request, title="Audit", lead=_verdict(view, checked), body=_audit_table(checked))

    @router.get("/budgets")
    def budget_list(request: Request) -> Response:
        view = view_of(request)
        return page_response(request, title="Privacy budgets", lead=_lead(view), body=_budgets(view))

    links = (("Jobs", "/"), ("Sites", "/sites"), ("Audit", "/audit"), ("Budgets", "/budgets"))
    return PageSet(links=[NavigationLink(title=title, address=address) for title, address in links], router=router)


def live_changes(told: Callable[[], Any]) -> Look:
    seen, version = told(), 0

    def look() -> dict[str, Any] | None:
        nonlocal seen, version
        try:
            now = told()
        except WinnowError:  # the server is away, or has just changed its mind: ask again
            return None
        if now == seen:
            return None
        seen, version = now, version + 1
        return {"reload": version}

    return look


def _lead(view: FederationView) -> str:
    mode = (
        "You may change things here, as far as your role allows." if view.control else "Nothing is changed from here."
    )
    return f"As {one_line(view.viewer)} may see it. {mode}"


def compact(table: str) -> str:
    return f'<div class="compact">{table}</div>'


def action_button(text: str, address: str, question: str) -> str:
    """A button whose request the page's script sends, after the reader has confirmed it."""
    return (
        f'<button type="button" data-post="{escape(address)}" data-confirm="{escape(question)}">{escape(text)}</button>'
    )


# Jobs ---------------------------------------------------------------------------------------------------------------


def _status(view: FederationView) -> str:
    """Who leads and how much goes on; a role may be allowed the jobs and not this."""
    try:
        status = view.status()
    except RequestRefusedError as refused:
        return paragraph(one_line(refused))
    counts = ", ".join(f"{count:,} {one_line(name)}" for name, count in status.jobs.items()) or "none"
    pieces = [
        card("Leader", one_line(status.leader), f"since {minute(status.since)} UTC"),
        card("Sites", f"{status.sites:,}", "connected"),
        card("Jobs", f"{sum(status.jobs.values()):,}", counts),
        card("Winnow", one_line(status.winnow_version), "at the server"),
    ]
    return cards(pieces) + bullet_list(map(one_line, status.notices))


def _job_table(jobs: Sequence[JobInfo]) -> str:
    if not jobs:
        return paragraph("There are no jobs yet. They appear as soon as one is submitted.")
    header = ("Job", "State", "Round", "By", "Submitted (UTC)", "Sites", "Why")
    rows = [
        (
            link_cell(one_line(job.job), f"/jobs/{job.job}"),
            one_line(job.status),
            _rounds(job),
            one_line(job.submitter),
            minute(job.submitted),
            str(len(job.sites)),
            one_line(job.reason),
        )
        for job in jobs
    ]
    folded = range(SHOWN_AT_FIRST, len(rows))
    texts = ("Round", "By", "Submitted (UTC)", "Sites", "Why")
    return compact(searchable_table("The latest first.", header, rows, texts=texts, verdicts="State", folded=folded))


def _job_lead(job: JobInfo) -> str:
    return f"{one_line(job.status).capitalize()}: {one_line(job.reason)}" if job.reason else one_line(job.status)


def _job(view: FederationView, job: JobInfo) -> str:
    rows = [
        ("Title", one_line(job.title)),
        ("Submitted by", f"{one_line(job.submitter)}, {one_line(job.organisation)}, {minute(job.submitted)} UTC"),
        ("Round", _rounds(job)),
        ("Priority", str(job.priority)),
        ("Sites", one_line(", ".join(job.sites)) or MISSING),
        *((f"{one_line(data)} {one_line(name)}", f"{value:.4f}") for data, name, value in _metrics(job)),
    ]
    absent = [
        f"{one_line(each.site)} is excluded since {minute(each.since)} UTC: {one_line(each.reason)}"
        for each in job.absent_sites
    ]
    rejected = [f"{one_line(site)} rejected the job: {one_line(why)}" for site, why in job.rejections.items()]
    buttons = _job_buttons(view, job) if view.control else ""
    return html_table("", ("", "Value"), rows, texts=("Value",)) + bullet_list([*absent, *rejected]) + buttons


def _metrics(job: JobInfo) -> list[tuple[str, str, float]]:
    return [(data, name, value) for data, values in job.metrics.items() for name, value in values.items()]


def _job_buttons(view: FederationView, job: JobInfo) -> str:
    question = f"Submit {job.job} again, in your name?"
    again = action_button("Submit again", f"/jobs/{job.job}/clone", question) if view.can_sign else ""
    abort = action_button("Abort", f"/jobs/{job.job}/abort", f"Abort {job.job}? Its committed rounds stay.")
    return f"<p>{'' if has_ended(job) else abort} {again}</p>"


def _log(log: JobLog) -> str:
    text = "\n".join(f"{_time(at, '%H:%M:%S')} {line}" for at, line in log.lines)
    return section("Log", f"<pre>{escape(text)}</pre>" if text else paragraph("Nothing is written yet."))


# Sites, audit, budgets ----------------------------------------------------------------------------------------------


def _site_table(view: FederationView, sites: Sequence[SiteInfo]) -> str:
    if not sites:
        return paragraph("No site has ever connected.")
    header = ["Site", "Organisation", "State", "Seen (UTC)", "Data", "Free", "Jobs", "Winnow"]
    rows = [[*_site(site), *([_site_buttons(site)] if view.control else [])] for site in sites]
    titles = [*header, *(["Control"] if view.control else [])]
    texts = [title for title in titles if title != "State"]
    folded = range(SHOWN_AT_FIRST, len(rows))
    return compact(searchable_table("", titles, rows, texts=texts, verdicts="State", folded=folded))


def _site(site: SiteInfo) -> list[TableCell]:
    state = "revoked" if site.revoked else "connected" if site.connected else "not connected"
    free = f"{site.free.cpus:g} CPUs, {site.free.memory_mb:,} MB, {site.free.gpus} GPUs"
    seen = minute(site.last_seen)
    data, jobs = (one_line(", ".join(names)) or MISSING for names in (site.data, site.jobs))
    return [
        one_line(site.site),
        one_line(site.organisation),
        state,
        seen,
        data,
        free,
        jobs,
        one_line(site.winnow_version),
    ]


def _site_buttons(site: SiteInfo) -> MarkupCell:
    stop = action_button("Stop", f"/sites/{site.site}/stop", f"Stop the agent of {site.site}?")
    restart = action_button("Restart", f"/sites/{site.site}/restart", f"Restart the agent of {site.site}?")
    return MarkupCell(f"{restart} {stop}")


def _verdict(view: FederationView, checked: CheckedAudit) -> str:
    """What this machine found when it checked the chain with the project's certificate authority."""
    if checked.problems:
        return f"Do not trust this log: {one_line(checked.problems[0])}"
    if checked.signer is None:  # a server that shows nothing at all is not to be trusted with "none was changed"
        return f"{len(checked.entries):,} entries, which no server has signed: nothing is known of what is missing."
    signer = one_line(checked.signer)
    where = "on this machine" if view.can_sign else "by the server itself (winnow ui --kit checks them on yours)"
    return f"{len(checked.entries):,} entries, checked {where}: none was changed, signed by {signer}."


def _audit_table(checked: CheckedAudit) -> str:
    header = ("No.", "Time (UTC)", "Who", "What", "Target", "Outcome")
    latest = checked.entries[: -AUDIT_SHOWN - 1 : -1]
    rows = [
        (
            f"{entry.seq:,}",
            one_line(entry.time[:19].replace("T", " ")),
            f"{one_line(entry.who)}, {one_line(entry.organisation)}",
            *map(one_line, (entry.what, entry.target, entry.outcome)),
        )
        for entry in latest
    ]
    more = f" The latest {len(rows):,} of {len(checked.entries):,}." if len(checked.entries) > len(rows) else ""
    table = searchable_table(
        f"The latest first.{more}", header, rows, texts=header[1:], verdicts="", folded=range(SHOWN_AT_FIRST, len(rows))
    )
    return bullet_list(map(one_line, [*checked.problems[:20], *checked.unsigned[:20]])) + compact(table)


@answer_errors()
def _budgets(view: FederationView) -> str:
    """What owners told when they were last asked; asking is a job of its own, which opens nothing."""
    ask = action_button(
        "Ask the owners", "/budgets", "Ask the owners of all tables? It takes a moment and opens nothing."
    )
    if not view.can_sign:
        return paragraph("Asking for budgets is a job that you sign, and your key is not here: use winnow ui --kit.")
    if view.budgets is None:
        return paragraph("What you may still spend is known to the owners of tables alone.") + f"<p>{ask}</p>"
    rows = [(one_line(each["table"]), one_line(each["owner"]), budget_text(each)) for each in view.budgets]
    table = html_table("Left to you", ("Table", "Owner", "ε left"), rows, texts=("Owner", "ε left"))
    return table + bullet_list(map(one_line, view.budget_notes)) + f"<p>{ask}</p>"


def _rounds(job: JobInfo) -> str:
    return f"{job.round:,}/{job.rounds:,}" if job.rounds else f"{job.round:,}"


def minute(at: float) -> str:
    return _time(at, "%Y-%m-%d %H:%M")


def _time(at: float, shown_as: str) -> str:
    """A time in UTC; a server can say any number."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime(shown_as)
    except (OverflowError, OSError, ValueError):
        return MISSING
