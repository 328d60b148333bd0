"""Why a run says nothing about clients' data."""

import tomllib

from pydantic import ValidationError

from winnow.config.schema import Experiment
from winnow.learn.algorithm_part import ALL_EVIDENCE
from winnow.learn.client_quality.settings import DEFAULT_EVIDENCE


def why_not_assessed(config_text: str) -> str:
    """What keeps a run with this configuration from looking at clients' data, and what to set."""
    try:
        experiment = Experiment.model_validate(tomllib.loads(config_text))  # no plug-ins: it may be a stranger's
    except (ValidationError, tomllib.TOMLDecodeError):
        return "its configuration is not that of a training that is known here"
    if experiment.ensemble is not None:
        return "an ensemble does not compare its clients"
    quality, parts = experiment.quality, (experiment.composed(), experiment.filters)
    if quality.kinds(*parts):
        return f"the first assessment is after round {min(quality.assessment_rounds(experiment.rounds))}"
    if quality.evidence is not None:
        return "quality.evidence = [] asks for nothing; remove it, or name what to look at"

    def fault(*kinds: str) -> str | None:
        return quality.model_copy(update={"evidence": kinds}).conflict(*parts)

    hidden = (fault(*DEFAULT_EVIDENCE) or "").removeprefix("quality.evidence: ").partition(";")[0]
    left = [kind for kind in sorted(ALL_EVIDENCE) if fault(kind) is None]
    return f"{hidden}; quality.evidence may be set to {', '.join(left)}" if left else hidden
