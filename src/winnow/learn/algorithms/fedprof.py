"""FedProf (Wu et al., 2022, algorithms 1 and 2): select clients whose data look, through the global model, like the
reference. Works in both aggregation modes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from winnow.core import ConfigError, Outcome, Population, Reply, Task, Work
from winnow.learn.aggregation import FullAggregation, PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.handlers import SEED_BYTES, ProfileSettings
from winnow.learn.profile_by_class import ProfileClasses, label_classes, restored_profile, target_edges
from winnow.learn.profile_comparison import PlainComparison, ProfileComparison
from winnow.learn.profiled_layer import check_layer, default_layer
from winnow.learn.representation_profile import ReferenceProfile, SendTasks
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, Selector, draw

REFERENCE = "reference/"
"""Under this name a checkpoint holds the reference profiles of versions that clients are still at work on."""

NotNegative: TypeAlias = Annotated[float, Field(ge=0)]

COMPARISON_BATCH = 4096
"""Profiles that are compared with the reference at a time: temporary arrays stay small where all clients send one."""


class ProfileSelector(Selector):
    """Scores λ_k = exp(−α_k · div(RP_k, RP_V)) of equation 13; clients are drawn by λ_k / Λ.

    `alpha` is one factor for all clients or a list with one a client; 0 is uniform sampling. With
    `divergence = "normalised"` each is divided by the largest over the clients, as in the first version of the paper.

    With `profile = "by-class"` there is one profile for each label, compared with the reference's of that label: wrong
    labels count, another mix of classes does not. Classes with fewer than `min_class_rows` samples are not told, and
    counts are rounded down to a multiple of `count_step`.
    """

    name: Literal["profile"] = "profile"
    alpha: NotNegative | tuple[NotNegative, ...] = 10.0
    divergence: Literal["raw", "normalised"] = "raw"
    layer: str | None = None
    profile: Literal["marginal", "by-class"] = "marginal"
    min_class_rows: int = Field(default=5, ge=1)
    count_step: int = Field(default=1, ge=1)
    profile_comparison: ProfileComparison = PlainComparison()

    @property
    def comparison(self) -> ProfileComparison:
        return self.profile_comparison

    @property
    def needs_labels(self) -> bool:
        return self.profile == "by-class"

    def privacy_text(self) -> str:
        if self.profile == "marginal":
            return ""
        rounded = f", rounded down to multiples of {self.count_step}" if self.count_step > 1 else ""
        return (
            f"profiles by class: each profile tells how many samples of each class a client has{rounded}, and what "
            f"they look like to the model on average; classes with fewer than {self.min_class_rows} samples are left "
            "out. This says more about a client than one profile of all its samples. It costs the same pass, and as "
            "many times the bytes as there are classes."
        )

    def layer_for(self, module: nn.Module, x: Tensor) -> str:
        return default_layer(module, x) if self.layer is None else check_layer(module, self.layer)

    def profile_classes(self, classes: int | None, y: NDArray[Any], *, sequences: bool) -> ProfileClasses | None:
        if self.profile == "marginal":
            return None
        if sequences:
            raise ConfigError(
                'select.profile = "by-class" needs one label per sample, but these samples are sequences of labels; '
                'write select.profile = "marginal"'
            )
        return ProfileClasses(
            labels=() if classes is None else label_classes(classes, np.bincount(y, minlength=classes)),
            edges=target_edges(y) if classes is None else (),
            min_rows=self.min_class_rows,
            count_step=self.count_step,
        )

    def accepts_classes(self, asked: ProfileClasses | None, labels: int | None) -> bool:
        if self.profile == "marginal" or asked is None:
            return self.profile == "marginal" and asked is None
        signed = (self.min_class_rows, self.count_step)
        return (asked.min_rows, asked.count_step) == signed and asked.fits(labels)

    def start(self, population: Population) -> Selection:
        return _ProfileSelection(self, len(population))


class _ProfileSelection(Selection):
    """Keeps, for each client, its last divergence and the version it belongs to; never a client's profile.

    A profile is compared with the reference profile of the same version, at once when it arrives; where there is none,
    what is known of the client stands. A reference profile is kept while a reply of its version may still come, and no
    longer.
    """

    def __init__(self, settings: ProfileSelector, clients: int) -> None:
        self._settings = settings
        self._count = settings.cohort_size(clients)
        self._alpha = np.asarray(settings.alpha, np.float64)
        if self._alpha.ndim and len(self._alpha) != clients:
            raise ConfigError(f"select.alpha: has {len(self._alpha)} factors, but there are {clients} clients")
        self._divergence = np.full(clients, np.nan)
        self._version = np.full(clients, -1, np.int64)
        self._references: dict[int, ReferenceProfile] = {}

    def propose(self, context: SelectionContext) -> SelectedClients:
        self._remember_reference(context)
        if context.version == 0 and context.reference is not None and np.isnan(self._divergence).all():
            self._fold(context.send_tasks(self._first_profiles(context)), context.send_tasks)
        return draw(self._log_scores(), self._count, context.rng, replacement=self._settings.replacement)

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        self._remember_reference(context)
        self._fold(replies, context.send_tasks)

    def _remember_reference(self, context: SelectionContext) -> None:
        self._references = {
            v: profile for v, profile in self._references.items() if v >= context.oldest_pending_version
        }
        if context.reference is not None:  # its holders may have failed
            self._references[context.version] = context.reference

    def _first_profiles(self, context: SelectionContext) -> list[Task]:
        work = Work(profiling_passes=1, download_bytes=SEED_BYTES, profile_bytes=self._references[0].nbytes)
        settings = ProfileSettings(classes=context.profile_classes)
        return [
            Task(name="profile", client=k, round=context.round, version=0, settings=settings, work=work)
            for k in range(len(self._version))
        ]

    def _fold(self, outcomes: Sequence[Outcome], ask: SendTasks) -> None:
        replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        for version in sorted({reply.task.version for reply in replies} & self._references.keys()):
            group = [reply for reply in replies if reply.task.version == version]
            for first in range(0, len(group), COMPARISON_BATCH):
                self._compare(group[first : first + COMPARISON_BATCH], version, ask)

    def _compare(self, replies: Sequence[Reply], version: int, ask: SendTasks) -> None:
        clients = [reply.task.client for reply in replies]
        profiles = [reply.payload["profile"] for reply in replies]
        self._divergence[clients] = self._references[version].divergences(profiles, ask)
        self._version[clients] = version

    def _log_scores(self) -> NDArray[np.float64]:
        """log λ_k. A client that never sent a profile counts as the farthest of those that did."""
        values = self._divergence
        if np.isnan(values).any():
            values = np.nan_to_num(values, nan=np.nanmax(values, initial=0.0))
        if self._settings.divergence == "normalised":
            values = values / max(values.max(), np.finfo(np.float64).tiny)
        result: NDArray[np.float64] = -self._alpha * values
        return result

    def state(self) -> Mapping[str, Any]:
        references = {
            f"{REFERENCE}{version}/{name}": array
            for version, profile in self._references.items()
            for name, array in profile.state().items()
        }
        return {"divergence": self._divergence, "version": self._version, **references}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._divergence = np.asarray(state["divergence"], np.float64)
        self._version = np.asarray(state["version"], np.int64)
        versions = {int(key.split("/")[1]) for key in state if key.startswith(REFERENCE)}
        self._references = {
            v: restored_profile({key.split("/")[2]: state[key] for key in state if key.startswith(f"{REFERENCE}{v}/")})
            for v in versions
        }


BY_CLASS_ALPHA = 25.0
"""Profiles by class differ little between honest clients, less than 0.02 where a marginal profile differs by 0.2."""

fedprof = Recipe(
    name="fedprof",
    summary="selection by profile, partial aggregation",
    select=ProfileSelector,
    aggregate=PartialAggregation,
)

fedprof_full = Recipe(
    name="fedprof-full",
    summary="selection by profile, full aggregation",
    select=ProfileSelector,
    aggregate=FullAggregation,
)

fedprof_by_class = Recipe(
    name="fedprof-by-class",
    summary="selection by class profiles, partial aggregation",
    select=partial(ProfileSelector, profile="by-class", alpha=BY_CLASS_ALPHA),
    aggregate=PartialAggregation,
)

fedprof_full_by_class = Recipe(
    name="fedprof-full-by-class",
    summary="selection by class profiles, full aggregation",
    select=partial(ProfileSelector, profile="by-class", alpha=BY_CLASS_ALPHA),
    aggregate=FullAggregation,
)
