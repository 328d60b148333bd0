"""Split learning with all owners in this process; a run folder keeps it, and a later call goes on from there."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import tomli_w
import torch
from rich.console import Console

from winnow.core import AnyEvent, Population, Randomness, RoundFinished, RunError, Snapshot, stream
from winnow.data.types import AS_GIVEN
from winnow.fleet import Devices
from winnow.progress.live_display import NoDisplay, ProgressDisplay, ProgressHeader, ProgressState, display_for
from winnow.runs import RunFolder, RunLabel, RunView, file_names, result_record
from winnow.runs.run_identity_record import WHO_LEARNS_WHAT
from winnow.simulate import SimulatedFederation
from winnow.simulate.kept_states import StatesByClient
from winnow.vertical.explain_split import who_learns_what
from winnow.vertical.keyed_rows import KeyedRows
from winnow.vertical.split_plan import SplitPlan
from winnow.vertical.split_result import SplitResult, TrainedParts
from winnow.vertical.split_site import STATE, SplitSite
from winnow.vertical.split_workflow import SplitLearning

RowsOf: TypeAlias = Callable[[int], KeyedRows]
NameOf: TypeAlias = Callable[[int], str]
SiteOf: TypeAlias = Callable[[RowsOf, NameOf, Randomness], SplitSite]


def simulate_split(
    plan: SplitPlan, parts: Mapping[str, KeyedRows], *, out: Path | None, resume: bool, progress: bool | None
) -> SplitResult:
    """Train over these parts; with `out`, in a run folder."""
    run = SimulatedSplit.of(plan, parts)
    view = run.finished(out, resume, progress)
    return SplitResult(
        plan=plan,
        size=run.workflow.size,
        view=view,
        trained=TrainedParts(plan=plan, parts=parts, states=run.states(), middle=run.workflow.middle),
    )


class SimulatedSplit:
    """The owners of one run."""

    def __init__(
        self, plan: SplitPlan, parts: Mapping[str, KeyedRows], workflow: SplitLearning, site_of: SiteOf
    ) -> None:
        self._plan, self._parts, self.workflow = plan, parts, workflow
        owners = plan.owners
        self.store = StatesByClient()
        site = site_of(lambda client: parts[owners[client]], lambda client: owners[client], stream)
        sizes = np.array([len(parts[name]) for name in owners], np.int64)
        self._federation = SimulatedFederation(
            site=None,
            handlers=site.handlers(),
            population=Population(sizes=sizes, names=owners),
            fleet=Devices().draw(len(owners), plan.seed, sample_bits=1, corrupted=np.zeros(len(owners), np.bool_)),
            store=self.store,
        )

    @classmethod
    def of(cls, plan: SplitPlan, parts: Mapping[str, KeyedRows]) -> Self:
        """For split learning itself."""
        return cls(plan, parts, SplitLearning(plan), partial(SplitSite, plan))

    def states(self) -> dict[str, Mapping[str, Any]]:
        """What each owner keeps."""
        return {name: self.store.read(number)[STATE] for number, name in enumerate(self._plan.owners)}

    def finished(self, out: Path | None, resume: bool, progress: bool | None) -> RunView:
        """Train to the end; with `out`, in a run folder."""
        display = _display(self._plan, progress)
        return self.in_memory(display) if out is None else self.in_folder(out, resume, display)

    @property
    def _label(self) -> RunLabel:
        return RunLabel(
            name=self._plan.title,
            algorithm=self._plan.kind,
            seed=self._plan.seed,
            metric=self._plan.metric.name,
            lower_is_better=self._plan.metric.lower_is_better,
            inputs=self._digest(),
            clock="none",
        )

    def _digest(self) -> str:
        """Of all that the run starts with: rows, and modules as they were given."""
        digest = sha256()
        modules = {**self._plan.bottoms, "top": self._plan.top}
        if self._plan.middle is not None:
            modules["middle"] = self._plan.middle
        for name in self._plan.owners:
            rows = self._parts[name]
            digest.update("\x1f".join((name, *rows.keys)).encode())
            for held in (rows.x, rows.y):
                digest.update(b"" if held is None else held.contiguous().numpy().tobytes())
        for name, module in modules.items():
            for key, value in module.state_dict().items():
                digest.update(f"{name}.{key}".encode() + value.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def events(self) -> Iterator[AnyEvent]:
        """Trains while somebody takes them."""
        return self.workflow.run(self._federation)

    def in_memory(self, display: ProgressDisplay) -> RunView:
        events: list[AnyEvent] = []
        with display:
            for event in self.events():
                events.append(event)
                display.on_event(event)
        return RunView(label=self._label, log=events, config_text=self._config(), conditions=self._conditions())

    def in_folder(self, path: Path, resume: bool, display: ProgressDisplay) -> RunView:
        if resume:
            self._check_same(path)
            folder, snapshot = RunFolder.resume(path)
        else:
            folder, snapshot = RunFolder.create(path, self._config(), self._conditions(), self._label), None
        with folder, display:
            if snapshot is not None:
                self._restore(snapshot)
            for event in folder.view().log:
                display.on_event(event)
            for event in self.events():
                folder.record(event)
                if isinstance(event, RoundFinished):
                    folder.checkpoint(self._snapshot(), {})
                display.on_event(event)
            view, seconds = folder.view(), folder.wall_seconds
            folder.finish(
                result_record(view.summary(), view.label, parameters=0, message_bytes=0, wall_seconds=seconds)
            )
            return folder.view()

    def _check_same(self, path: Path) -> None:
        label = path / file_names.LABEL
        if label.is_file() and (
            RunLabel.read(label).inputs != self._label.inputs
            or (path / file_names.CONFIG).read_text(encoding="utf-8") != self._config()
        ):
            raise RunError(f"{path} contains a run with other rows, modules or settings; choose another folder")

    def _config(self) -> str:
        plan = self._plan
        protection = {name: value for name, value in vars(plan.protection).items() if value is not None}
        settings: dict[str, Any] = {name: getattr(plan, name) for name in plan.setting_names}
        first, second = plan.words
        modules = {**{f"{first} of {name}": str(each) for name, each in plan.bottoms.items()}, second: str(plan.top)}
        if plan.middle is not None:
            modules["middle, at the server"] = str(plan.middle)
        section = {"labels": plan.labels, **settings, "protection": protection, "modules": modules}
        told = {WHO_LEARNS_WHAT: list(who_learns_what(plan)), plan.kind.removesuffix("-learning"): section}
        return tomli_w.dumps(told, multiline_strings=True)

    def _conditions(self) -> dict[str, Any]:
        owners = self._plan.owners
        sizes = [len(self._parts[name]) for name in owners]
        return {"labels": [AS_GIVEN], "of_client": [0] * len(owners), "names": list(owners), "sizes": sizes}

    def _snapshot(self) -> Snapshot:
        """The server's state, and that of all owners, who are in this process."""
        server = self.workflow.snapshot()
        arrays = {f"server/{name}": server.arrays[name] for name in server.arrays}
        for client in range(len(self._plan.owners)):
            for name, value in self.store.read(client)[STATE].items():
                arrays[f"{client}/{name}"] = value
        return Snapshot(arrays=arrays, values=server.values)

    def _restore(self, snapshot: Snapshot) -> None:
        grouped: dict[str, dict[str, torch.Tensor]] = {}
        for name in snapshot.arrays:
            owner, array = name.split("/", 1)
            grouped.setdefault(owner, {})[array] = torch.as_tensor(snapshot.arrays[name])
        self.workflow.restore(Snapshot(arrays=grouped.pop("server", {}), values=snapshot.values))
        for client, state in grouped.items():
            self.store.write(int(client), {STATE: state})


def _display(plan: SplitPlan, progress: bool | None) -> ProgressDisplay:
    """On standard error, unless that is no terminal and nobody asked."""
    console = Console(stderr=True)
    if progress is False or (progress is None and not (sys.stderr.isatty() or console.is_jupyter)):
        return NoDisplay()
    header = ProgressHeader(
        title=f"{plan.title} · {', '.join(plan.owners)}",
        metric=plan.metric.name,
        rounds=plan.rounds,
        lower_is_better=plan.metric.lower_is_better,
        devices=False,
    )
    return display_for(ProgressState(header), console)
