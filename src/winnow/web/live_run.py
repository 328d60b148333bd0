"""What a page about a running training is told while the training goes on."""

from html import escape
from typing import Any

from winnow.config.planned_rounds import planned_rounds
from winnow.core import RunError
from winnow.report.number_format import MISSING, number_text
from winnow.runs import RunFolder, RunView, file_names
from winnow.runs.atomic_write import is_locked
from winnow.runs.metrics_csv import row_of
from winnow.runs.summary import privacy_spent_lines
from winnow.web.damaged_run import damage_in_one_line
from winnow.web.live_stream import Look
from winnow.web.log_tail import LogCutBack, LogTail
from winnow.web.run_index import IndexedRun
from winnow.web.run_progress import RunProgress


def live_cards(run: IndexedRun, view: RunView, points: int) -> str:
    """What changes while the run goes on, and where the page's script hears of it."""
    progress = RunProgress(view.label)
    progress.follow(view.events())
    cards = "".join(
        f'<div class="card"><h3>{escape(title)}</h3>'
        f'<p class="value" data-fact="{escape(title)}">{escape(text)}</p></div>'
        for title, text in _facts(run.state, progress, view).items()
    )
    return f'<div class="cards" data-live="/runs/{run.key}/live?after={points}">{cards}</div>'


def _facts(state: str, progress: RunProgress, view: RunView) -> dict[str, str]:
    asked, label = planned_rounds(view.config), view.label
    facts = {
        "State": state,
        "Rounds": f"{progress.rounds:,}" + (f" of {asked:,}" if asked is not None else ""),
        f"Best {label.metric}": MISSING if progress.best is None else f"{progress.best:.4f}",
        f"Last {label.metric}": MISSING if progress.last is None else f"{progress.last:.4f}",
    }
    if label.clock != "none":
        facts[f"{label.clock.capitalize()} time"] = f"{number_text(progress.seconds / 60)} min"
    if progress.wh:
        facts["Energy"] = f"{number_text(progress.wh)} Wh"
    if progress.privacy:
        facts["Privacy spent"] = ", ".join(privacy_spent_lines(progress.privacy))
    return facts


def follow_run(run: IndexedRun, after: int) -> Look:
    """What has come since the point number `after`; `restart` where the page shows what is no longer so."""
    view = RunFolder.open(run.path)
    tail, progress, sent = LogTail(run.path / file_names.EVENTS), RunProgress(view.label), 0
    state: str = run.state

    def look() -> dict[str, Any] | None:
        nonlocal sent, state
        ended = (run.path / file_names.RESULT).exists()
        try:
            with damage_in_one_line(run.shown):
                added = [row_of(point) for point in progress.follow(tail.new_events())]
        except (LogCutBack, RunError):  # the page, once it is loaded again, says what is wrong
            return {"restart": True, "ended": True}
        before, sent = sent, sent + len(added)
        rows = added[max(after - before, 0) :]
        now = "running" if is_locked(run.path / file_names.LOCK) else "interrupted"
        if not rows and not ended and now == state:
            return None
        state = now
        return {"id": sent, "rows": rows, "facts": _facts(now, progress, view), "restart": ended, "ended": ended}

    return look
