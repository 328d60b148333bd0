"""The filters that a site's policy requires of jobs."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

import winnow.config.schema  # noqa: F401 - brings all filters that there are
from winnow.core import ConfigError, Failure, Filter, Handler, Outcome, Reply, Settings, Task
from winnow.learn.client_quality.assess_handler import ASSESS, ROWS
from winnow.learn.client_quality.evidence import BLOCK_OF
from winnow.learn.client_quality.reference_source import SUMMARISE_REFERENCE, SUMMARY
from winnow.learn.handlers import CONFUSION
from winnow.learn.secure_randomness import secure_stream
from winnow.learn.update_filters import TwoSidedFilter, site_filters
from winnow.privacy.filters.update_vector import is_large
from winnow.privacy.homomorphic.site import CIPHERTEXTS, DECRYPT, ENCRYPT, MAKE_KEY
from winnow.privacy.secagg.mask_keeper_hosted_at_site import KEEPER_REQUEST
from winnow.privacy.secagg.protocol_tasks import (
    ADVERTISE_KEYS,
    CLOSE_SESSION,
    CONSISTENCY_CHECK,
    DEPOSIT_SEED,
    MASKED_INPUT,
    SECURE,
    SHARE_KEYS,
    UNMASK,
)

ALLOWED_EXTRA_PARTS: dict[str, set[str]] = {
    "train": {"profile"},
    "profile": {"profile"},
    "evaluate-reference": {"profile"},
    "evaluate-loss": set(),
    "evaluate-personal": {CONFUSION},
    ASSESS: {*BLOCK_OF.values(), ROWS},
    SUMMARISE_REFERENCE: {SUMMARY},
    "profile-make-keys": {"keys"},
    "profile-set-key": set(),
    "profile-decrypt": {"divergences"},
    **{
        step: {SECURE}
        for step in (ADVERTISE_KEYS, CLOSE_SESSION, SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASK, DEPOSIT_SEED)
    },
    **{step: {SECURE} for step in (KEEPER_REQUEST, MAKE_KEY, DECRYPT)},
    ENCRYPT: {CIPHERTEXTS},
}
"""By task, what may leave besides changed copies of what came: profiles, which are means over a client's samples, what
the site's policy lets evaluations count and assessments tell, and what protocols send of updates that the filters saw
before. A task that is not listed is not done.
"""


def reject_unchecked_parts(tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
    """A filter around the mandatory ones, which compare an update with what was sent: nothing else may leave past them.

    A server that sends no model with a task, or asks for more than training, would get around them otherwise.
    """
    if tasks[0].name not in ALLOWED_EXTRA_PARTS:
        reason = f"this site's filters do not cover task '{tasks[0].name}'"
        return [Failure(task=task, stage="filtering", reason=reason) for task in tasks]
    return [_checked(task, outcome) for task, outcome in zip(tasks, call_next(tasks, site), strict=True)]


def _checked(task: Task, outcome: Outcome) -> Outcome:
    if not isinstance(outcome, Reply):
        return outcome
    for part in outcome.payload.keys() - task.payload.keys() - ALLOWED_EXTRA_PARTS[task.name]:
        if is_large(outcome.payload[part]):
            reason = f"this site's filters cannot check part '{part}': the task did not contain it"
            return Failure(task=outcome.task, stage="filtering", reason=reason)
    return outcome


class _Forced(Settings):
    filters: tuple[TwoSidedFilter, ...]


def mandatory_filters(tables: Sequence[Mapping[str, Any]]) -> tuple[Filter[Any], ...]:
    """The sites' side of these filters, with secure randomness, and `reject_unchecked_parts` around them."""
    try:
        return reject_unchecked_parts, *site_filters(
            _Forced.model_validate({"filters": list(tables)}).filters, secure_stream
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"invalid mandatory filter in the site's policy: {where}: {first['msg']}") from error
