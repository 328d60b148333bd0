"""Exclude variables: of those named, nothing leaves the site (ExcludeVars of NVIDIA FLARE, section 3)."""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from winnow.core import Arrays, ConfigError, suggest
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS, DataSummary, EvidenceKind
from winnow.learn.update_filters import MessageEstimate
from winnow.privacy.filters.update_vector import UpdateFilter, UpdateVector, float_names, tensor_sizes


class ExcludeVariables(UpdateFilter):
    """Variables whose names match (`fc2.*`) come back as they were sent, as if the client had not trained them.

    They stay in the message, so that any way of collecting can sum it; where updates are compressed they cost a bit.
    """

    name: Literal["exclude"] = "exclude"
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = frozenset(TOLD_BY_CLIENTS)
    variables: tuple[str, ...] = Field(min_length=1)

    def altered(self, changes: UpdateVector, sent: Arrays, rng: np.random.Generator) -> UpdateVector:
        left_out = np.array([self._matches(name) for name in float_names(sent)], bool)
        altered: UpdateVector = np.where(np.repeat(left_out, tensor_sizes(sent)), np.float32(0), changes)
        return altered

    def buffers(self, arrays: Arrays, sent: Arrays) -> dict[str, Any]:
        whole = {name: tensor for name, tensor in arrays.items() if not tensor.is_floating_point()}
        return {name: sent[name] if self._matches(name) else tensor for name, tensor in whole.items()}

    def shrunk(self, message: MessageEstimate) -> MessageEstimate:
        left = {name: tensor for name, tensor in message.tells.items() if not self._matches(name)}
        return replace(message, tells=left)

    def check_data(self, data: DataSummary) -> None:
        model = data.shared_model
        for pattern in self.variables:
            if not any(fnmatchcase(name, pattern) for name in model):
                raise ConfigError(
                    f"filters: exclude: nothing in the model is called {pattern!r}; {suggest(pattern, model)}"
                )
        if all(self._matches(name) for name in model):
            raise ConfigError("filters: exclude: these names leave out the whole model, and nothing could be learnt")

    def privacy_text(self) -> str:
        return (
            f"exclude: the server learns nothing of what clients made of {', '.join(self.variables)}, and sees the "
            "rest of every update. The rest may still tell of the same data. What is excluded is not learnt together."
        )

    def _matches(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.variables)
