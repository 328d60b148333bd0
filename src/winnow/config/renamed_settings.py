"""What Winnow 0.1 called differently, so that an error can name the new word."""

from collections.abc import Mapping, Sequence
from typing import Any

KEYS = {
    "judge": "evaluation",
    "pace": "schedule",
    "client.pull": "proximal_weight",
    "collect.adaptive": "adaptive_clip",
    "collect.fewest": "min_clients",
    "collect.heaviest": "max_weight_share",
    "collect.holder": "key_holder",
    "collect.honest": "honest_fraction",
    "collect.overflow": "max_overflow_share",
    "collect.parameters": "parameter_source",
    "collect.rate": "clip_learning_rate",
    "collect.rest": "quantisation",
    "collect.smallest": "min_weights",
    "collect.values": "quantisation",
    "data.own_test": "local_test",
    "data.reach": "max_distance",
    "filters.entropy": "entropy_coding",
    "filters.feedback": "error_feedback",
    "filters.keep": "sparsify",
    "filters.level": "zstd_level",
    "filters.names": "variables",
    "filters.numbers": "quantise",
    "filters.share": "fraction",
    "job.deadline": "task_timeout",
    "schedule.goal": "buffer_size",
    "schedule.tolerance": "lag_tolerance",
    "select.blacklist": "max_participations",
    "select.candidates": "candidate_factor",
    "select.clip": "clip_quantile",
    "select.exploration_least": "exploration_min",
    "select.first": "first_stage_clients",
    "select.matching": "profile_comparison",
    "select.preferred": "preferred_percentile",
    "select.renew": "resample_every",
}
"""Keys of a configuration: the section and the key, whatever tables stand between them."""

CHOICES = {
    "client.own-norms": "local-batch-norm",
    "collect.product": "product-quantisation",
    "collect.pruned": "random-pruning",
    "model.given": "in-memory",
}
"""Names in a section."""

ALGORITHMS = {"clustered": "clustered-sampling"}

OPTIONS = {
    ("compare", "--jobs"): "--workers",
    ("reproduce", "--jobs"): "--workers",
    ("run", "--profile"): "--timing",
}
"""Options of commands."""

SERVER_KEYS = {
    "join": "join_wait",
    "limits.calls": "concurrent_calls",
    "limits.code_disk_mb": "custom_code_disk_mb",
    "limits.code_mb": "custom_code_memory_mb",
    "limits.jobs": "running_jobs",
    "limits.lines": "log_lines",
    "limits.transfers": "concurrent_transfers",
    "metrics": "metrics_address",
}
"""Keys of server.toml."""

SITE_KEYS = {"data.own_test": "local_test"}
"""Keys of site.toml."""


def renamed(path: Sequence[str], new_names: Mapping[str, str]) -> str | None:
    """The last word of a path, as it is now; None if it was not renamed. Indices (`filters[0]`) do not count."""
    section, last = path[0].partition("[")[0], path[-1]
    return new_names.get(last if len(path) == 1 else f"{section}.{last}")


def old_key(table: Mapping[str, Any], new_names: Mapping[str, str], path: tuple[str, ...] = ()) -> str | None:
    """The first key in a table that has another name now, as a line for a user."""
    for key, value in table.items():
        here = (*path, key)
        if (new := renamed(here, new_names)) is not None:
            return now_called(here, new)
        if isinstance(value, Mapping) and (found := old_key(value, new_names, here)) is not None:
            return found
    return None


def now_called(path: Sequence[str], new: str) -> str:
    return f"{'.'.join(path)} is now {'.'.join([*path[:-1], new])}"
