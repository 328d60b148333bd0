"""The run folder: what a run was, what happened, what came of it, and how to take it up again."""

from winnow.runs.changed_communication_cost import retimed_events, with_communication_cost
from winnow.runs.evaluation_record import EvaluationRecord, SampleScores
from winnow.runs.folder import RunFolder, check_folder_is_free
from winnow.runs.history import HistoryPoint, points
from winnow.runs.privacy_budgets import PrivacyBudget, read_privacy_budgets
from winnow.runs.run_identity_record import RunClock, RunLabel
from winnow.runs.summary import MetricReading, Summary, result_record, summarise
from winnow.runs.view import RunView

__all__ = [
    "EvaluationRecord",
    "HistoryPoint",
    "MetricReading",
    "PrivacyBudget",
    "RunClock",
    "RunFolder",
    "RunLabel",
    "RunView",
    "SampleScores",
    "Summary",
    "check_folder_is_free",
    "points",
    "read_privacy_budgets",
    "result_record",
    "retimed_events",
    "summarise",
    "with_communication_cost",
]
