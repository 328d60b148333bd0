"""What split learning gives: scores by epoch, what gradients told of labels, and in a simulation the trained parts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.core import AnyEvent, RoundFinished, RunError
from winnow.data.preprocessing import Preprocessing
from winnow.report.privacy_section import PrivacyExplanation
from winnow.report.report import write_report
from winnow.runs import RunLabel, RunView
from winnow.vertical.explain_split import who_learns_what
from winnow.vertical.keyed_rows import KeyedRows
from winnow.vertical.label_party import LabelParty
from winnow.vertical.split_plan import SplitPlan
from winnow.vertical.split_workflow import LABELS, REFERENCE, SplitLearning
from winnow.vertical.trained_module import TrainedModule

BOTTOM, LABEL_STATE = "bottom.", "labels."
RESULTS = Path("results")
"""What a program writes there in a job is the site's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedParts:
    """All parties' modules, which are in one place in a simulation alone."""

    plan: SplitPlan
    parts: Mapping[str, KeyedRows]
    states: Mapping[str, Mapping[str, Tensor]]
    middle: TrainedModule | None

    def modules(self) -> dict[str, nn.Module]:
        """By owner; "top" and "middle" are called so."""
        found: dict[str, nn.Module] = {name: self._bottom(name).module for name in self.plan.senders}
        party = self._label_party()
        found.update(party.modules())
        if self.middle is not None:
            found["middle"] = self.middle.module
        return found

    def outputs(self, rows: Mapping[str, Any]) -> Tensor:
        """The model's outputs for features of all owners, row by row."""
        x = {name: self._features(name, rows) for name in self.plan.bottoms}
        activations = {name: self._bottom(name).outputs(x[name]) for name in self.plan.senders}
        if self.middle is not None:
            return self._label_party().outputs({"middle": self.middle.outputs(*activations.values())}, None)
        return self._label_party().outputs(activations, x.get(self.plan.labels))

    def labelled(self, outputs: Tensor) -> NDArray[Any]:
        rows = self.parts[self.plan.labels]
        if rows.classes is None:
            return outputs.numpy()
        return Preprocessing(classes=rows.labels).decode(outputs)

    def _features(self, name: str, rows: Mapping[str, Any]) -> Tensor:
        if name not in rows:
            raise RunError(f"predict needs the features of {name}")
        preprocessing = self.parts[name].preprocessing
        assert preprocessing is not None
        return torch.as_tensor(preprocessing.transform(rows[name], name))

    def _bottom(self, name: str) -> TrainedModule:
        module = TrainedModule(self.plan.bottoms[name], self.plan, name)
        module.restore(_of(self.states[name], BOTTOM))
        return module

    def _label_party(self) -> LabelParty:
        party = LabelParty(self.plan, self.parts[self.plan.labels])
        party.restore(_of(self.states[self.plan.labels], LABEL_STATE))
        return party


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitResult:
    """`history` has a row an epoch, `score` is the last one's."""

    plan: SplitPlan
    size: int
    """How many keys the owners have in common."""
    view: RunView
    trained: TrainedParts | None = None

    @classmethod
    def of(cls, plan: SplitPlan, workflow: SplitLearning, events: Iterable[AnyEvent]) -> Self:
        """Of a job, whose modules stay with their owners."""
        label = RunLabel(name=plan.title, algorithm=plan.kind, seed=plan.seed, metric=plan.metric.name)
        return cls(plan=plan, size=workflow.size, view=RunView(label=label, log=list(events)))

    @property
    def history(self) -> list[dict[str, float]]:
        """Score and training loss by epoch; `labels.…` says how well labels are inferred from gradients."""
        return [
            {
                "epoch": event.round - 1,
                self.plan.metric.name: event.metrics[REFERENCE][self.plan.metric.name],
                **({} if np.isnan(event.loss) else {"loss": event.loss}),
                **{f"{LABELS}.{name}": value for name, value in event.metrics.get(LABELS, {}).items()},
            }
            for event in self.view.log
            if isinstance(event, RoundFinished) and REFERENCE in event.metrics
        ]

    @property
    def score(self) -> float:
        return self.history[-1][self.plan.metric.name]

    @property
    def epsilon(self) -> float | None:
        """For each label, at the plan's δ; None without noise."""
        return self.plan.protection.epsilon(self.plan.epochs)

    @property
    def modules(self) -> dict[str, nn.Module]:
        return self._here().modules()

    def predict(self, rows: Mapping[str, Any]) -> NDArray[Any]:
        """Labels, or values, for rows of which every owner's features are given, in the same order."""
        trained = self._here()
        return trained.labelled(trained.outputs(rows))

    def report(self, path: str | Path) -> Path:
        """Write an HTML page."""
        explained = PrivacyExplanation(text=self.explain(), warnings=tuple(self._inferred()))
        return write_report(Path(path), [self.view], lambda run: explained)

    def explain(self) -> str:
        """Who learns what."""
        return "\n".join(who_learns_what(self.plan))

    def _inferred(self) -> Iterator[str]:
        """What the owner of labels found when it tried to infer them from its gradients."""
        last = self.history[-1]
        if f"{LABELS}.by_direction" in last:
            right, guessed = (last[f"{LABELS}.{name}"] for name in ("by_direction", "guessed"))
            yield f"Labels inferred from gradients at the cut: {right:.0%} right (guessing: {guessed:.0%})"
        if f"{LABELS}.norm_auc" in last:
            yield f"Norms of gradients tell the two classes apart with AUC {last[f'{LABELS}.norm_auc']:.2f}"

    def __str__(self) -> str:
        lines = [
            f"{self.plan.title.capitalize()} over {self.size:,} common rows of {', '.join(self.plan.owners)}: "
            f"{self.plan.metric.name} {self.score:.4f} after {self.plan.epochs} epochs"
        ]
        lines.extend(self._inferred())
        if self.epsilon is not None:
            lines.append(f"Each label: ε = {self.epsilon:.3g} at δ = {self.plan.protection.delta:g}")
        return "\n".join(lines)

    def _here(self) -> TrainedParts:
        if self.trained is None:
            raise RunError("modules of a job stay with their owners; predict there, or simulate")
        return self.trained


def leave_modules(modules: Mapping[str, nn.Module]) -> None:
    """Write an owner's modules where a site keeps what jobs leave to it."""
    from safetensors.torch import save_file  # noqa: PLC0415 - simulations need none

    RESULTS.mkdir(exist_ok=True)
    for name, module in modules.items():
        held = {key: value.contiguous() for key, value in module.state_dict().items()}
        save_file(held, RESULTS / f"{name}.safetensors")


def _of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): torch.as_tensor(value) for name, value in state.items() if name.startswith(prefix)
    }
