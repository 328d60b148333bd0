"""Reports of runs, with what their configurations mean for privacy and for looking at clients' data."""

import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from winnow.config.schema import Experiment
from winnow.explain.privacy_report import PrivacyReport, make_privacy_report
from winnow.explain.unassessed_clients import why_not_assessed
from winnow.runs import RunView, file_names
from winnow.runs.atomic_write import warn_if_unwritten
from winnow.runs.run_identity_record import WHO_LEARNS_WHAT

if TYPE_CHECKING:
    from winnow.report import PrivacyExplanation
    from winnow.report.plot_data import RunPlotData


def write_reports(path: Path, views: Sequence[RunView]) -> Path:
    """Write one report over these runs."""
    from winnow.report import write_report  # noqa: PLC0415 - Plotly is not needed before a run has ended

    return write_report(path, views, explain=explain_run, why_not_assessed=why_not_assessed)


def write_run_report(view: RunView) -> None:
    """Put the report of a finished run into its folder. The run is finished without it, too: a disk may be full."""
    assert view.path is not None
    with warn_if_unwritten("the report", f"the run is finished; try: winnow report {shlex.quote(str(view.path))}"):
        write_reports(view.path / file_names.REPORT, [view])


def explain_run(run: "RunPlotData") -> "PrivacyExplanation | None":
    """What the settings of a run mean. None where they are not those of a training that is known here: no plug-in is
    loaded for a report.
    """
    from winnow.report import PrivacyExplanation  # noqa: PLC0415

    if (lines := stated_lines(run.config_text)) is not None:
        return PrivacyExplanation(text="\n".join(lines), warnings=())
    try:
        experiment = Experiment.model_validate(tomllib.loads(run.config_text))
    except (ValidationError, tomllib.TOMLDecodeError):
        return None
    told = make_privacy_report(experiment, run.summary.privacy_spent)
    return PrivacyExplanation(text="\n".join(_lines(told)), warnings=told.warnings)


def stated_lines(config_text: str) -> list[str] | None:
    """Who learns what, where a run's configuration says it by itself."""
    try:
        found = tomllib.loads(config_text).get(WHO_LEARNS_WHAT)
    except tomllib.TOMLDecodeError:
        return None
    return [str(line) for line in found] if isinstance(found, list) else None


def _lines(told: PrivacyReport) -> Iterator[str]:
    for party in told.parties:
        yield party.name
        yield from (f"  · {each}" for each in party.learns)
    if told.parts:
        yield "what each part does"
        yield from (f"  · {each}" for each in told.parts)
