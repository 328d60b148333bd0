"""The score of a run: its mean over the last rounds, for the best one would have to be found by labels."""

from statistics import fmean

from winnow.papers.result_json_lines import RunResultLine

LAST_ROUNDS = 5


def last_score(run: RunResultLine) -> float | None:
    """The mean over the last rounds that were scored."""
    scores = [score for score in run.trace if score is not None][-LAST_ROUNDS:]
    return fmean(scores) if scores else None
