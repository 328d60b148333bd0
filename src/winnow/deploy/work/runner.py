"""A job's process at the server: it runs the workflow. `python -m winnow.deploy.work.runner FD`

The same program that ran in a notebook runs here; its `winnow.run` finds this place and drives the real federation.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from winnow.core import AnyEvent, ConfigError, DataError, RoundFinished, RunError, Snapshot, Workflow
from winnow.data import Examples
from winnow.deploy.wire.messages import DataDescription
from winnow.deploy.work.checkpoints import load_snapshot, save_snapshot
from winnow.deploy.work.data import held_by_server
from winnow.deploy.work.federation import Deployed, WallClock
from winnow.deploy.work.line import HaltedError, Line
from winnow.deploy.work.orders import Begin, Commit, Committed, Finished, GaveUp, Halt, Member, Said, ToRunner
from winnow.deploy.work.process import Spoken, open_line, perform
from winnow.experiment.conduct import Conduct
from winnow.experiment.judging import judge_of
from winnow.experiment.place import Place
from winnow.experiment.resolve import to_toml
from winnow.experiment.run import Inputs, OnEvent, Result
from winnow.experiment.schema import Experiment
from winnow.experiment.subject import SAMPLE, Facts, Subject, device_for, loss_for, module_for
from winnow.learn.filters import Filtered, Filtering
from winnow.learn.stack import allow_tf32, as_tensor
from winnow.learn.training import Training
from winnow.runs import RunLabel, RunView, names, result_record
from winnow.runs.checkpoint import save_arrays
from winnow.runs.codec import EventLog, encode_event, plain


class AtServer(Place):
    """Runs an experiment's workflow over the sites of a job, and commits every round before the next."""

    def __init__(self, line: Line[ToRunner], begin: Begin) -> None:
        self._line, self._begin = line, begin
        self._folder = Path(begin.folder)
        self._executed = False
        self.output: dict[str, str] = {}

    def execute(self, experiment: Experiment, inputs: Inputs, on_event: OnEvent) -> Result:
        self._once()
        torch.set_num_threads(experiment.engine.threads or 1)
        allow_tf32(experiment.engine.precision)
        subject, reference, test = self._subject(experiment, inputs)
        sizes = np.array([size for member in self._begin.members for size in member.data.sizes], np.int64)
        facts = subject.facts(sizes)
        training = self._training(subject, facts, sizes, reference, test)
        log: list[AnyEvent] = []
        if self._begin.checkpoint is not None:
            training.restore(load_snapshot(Path(self._begin.checkpoint)))
            log = self._earlier()
        federation = self._federation(training.now, experiment.job.deadline)
        self._drive(training, federation, experiment.rounds, log, on_event, experiment.filters)
        return self._result(subject, facts, training, log)

    def _subject(self, experiment: Experiment, inputs: Inputs) -> tuple[Subject, Examples, Examples]:
        """What is learnt, and what the server has to judge it by."""
        described = common_description(self._begin.members)
        name = experiment.data.name
        held = held_by_server(name, self._begin.data.get(name, {}))
        if held[0] is None and not experiment.reference_clients:
            raise DataError(
                f"the server holds no reference set for {name!r}: name one in server.toml ([data.{name}] folder = …), "
                "or say which clients hold it: reference_clients = [0]"
            )
        device = device_for(experiment.engine.device)
        classes = described.outputs if described.classification else None
        nothing = _nothing_like(described)
        like = held[0] or held[1] or nothing
        if list(like.x.shape[1:]) != described.sample_shape:
            raise DataError(
                f"the server's {name} has samples of shape {list(like.x.shape[1:])}, the sites' have "
                f"{described.sample_shape}"
            )
        module = inputs.module if inputs.module is not None else module_for(experiment, like, classes)
        some = like.x[:SAMPLE] if len(like) else np.zeros((SAMPLE, *like.x.shape[1:]), like.x.dtype)
        some_y = like.y[:SAMPLE] if len(like) else np.zeros((SAMPLE, *like.y.shape[1:]), like.y.dtype)
        subject = Subject(
            experiment=experiment,
            module=module.to(device),
            loss=loss_for(experiment, classes, inputs.loss),
            some=(as_tensor(some, device), as_tensor(some_y, device)),
            classes=classes,
        )
        return subject, held[0] or nothing, held[1] or nothing

    def _training(
        self, subject: Subject, facts: Facts, sizes: "np.ndarray[tuple[int], np.dtype[np.int64]]", *held: Examples
    ) -> Training:
        own = [size for member in self._begin.members for size in member.data.own_test_sizes]
        plan = subject.plan(facts)
        judge = judge_of(
            subject.experiment,
            plan,
            subject.examiner,
            sizes=sizes,
            own_test_sizes=np.array(own, np.int64) if len(own) == len(sizes) else None,
            reference=held[0],
            test=held[1],
            device=device_for(subject.experiment.engine.device),
            store=None,
        )
        return Training(plan, subject.initial, judge)

    def conduct(self, wanted: Conduct, on_event: OnEvent) -> list[AnyEvent]:
        self._once()
        log: list[AnyEvent] = []
        now = 0.0
        if self._begin.checkpoint is not None:
            snapshot = load_snapshot(Path(self._begin.checkpoint), in_memory=False)
            wanted.workflow.restore(snapshot)
            log, now = self._earlier(), snapshot.values.get("now", 0.0)
        self._drive(wanted.workflow, self._federation(now, None), 0, log, on_event)
        kind = type(wanted.workflow).__name__
        label = RunLabel(name=self._begin.job, algorithm=kind, seed=wanted.seed, metric="loss")
        self._put_out_result(RunView(label=label, log=log), parameters=0, message_bytes=0)
        return log

    def _once(self) -> None:
        if self._executed:
            raise ConfigError("a job holds one run; submit the others as jobs of their own")
        self._executed = True

    def _federation(self, now: float, deadline: float | None) -> Deployed:
        return Deployed(self._line, self._begin.members, self._folder, WallClock(now), deadline)

    def _earlier(self) -> list[AnyEvent]:
        """What happened up to the last committed round."""
        return list(EventLog(Path(self._begin.events))) if self._begin.events else []

    def _drive(
        self,
        workflow: Workflow,
        federation: Deployed,
        rounds: int,
        log: list[AnyEvent],
        on_event: OnEvent,
        filters: Sequence[Filtering] = (),
    ) -> None:
        """Run the workflow, and have every round made permanent before anything of the next is announced."""
        lines: list[str] = []
        for event in workflow.run(Filtered(federation, filters) if filters else federation):
            log.append(event)
            lines.append(encode_event(event).decode().rstrip("\n"))
            if isinstance(event, RoundFinished):
                self._commit(workflow, federation, event, rounds, lines)
                lines.clear()
            on_event(event)

    def _commit(
        self, workflow: Workflow, federation: Deployed, event: RoundFinished, rounds: int, lines: list[str]
    ) -> None:
        path = self._folder / f"round-{event.round}"
        state = workflow.snapshot()
        save_snapshot(path, Snapshot(arrays=state.arrays, values={"now": event.at, **state.values}))
        self._line.send(
            Commit(
                round=event.round,
                rounds=rounds,
                checkpoint=str(path),
                lines=list(lines),
                settled=federation.over(),
                metrics={data: dict(values) for data, values in event.metrics.items()},
            )
        )
        while (done := self._line.receive(Committed)) is not None and done.round < event.round:
            pass
        path.unlink(missing_ok=True)

    def _result(self, subject: Subject, facts: Facts, training: Training, log: list[AnyEvent]) -> Result:
        experiment = subject.experiment
        for name, model in (("best", training.best), ("last", training.model)):
            path = self._folder / names.model_file(name)
            save_arrays(path, {k: t for k, t in model.items() if k not in facts.private}, {"format": "pt"})
            self.output[path.name] = str(path)
        label = RunLabel(
            name=experiment.name,
            algorithm=experiment.algorithm,
            seed=experiment.seed,
            metric=facts.metric,
            target=experiment.target,
            judged_by=experiment.judge.by,
        )
        view = RunView(label=label, log=log, config_text=to_toml(experiment))
        self._put_out_result(
            view, parameters=facts.parameters, message_bytes=facts.message_bytes, private=facts.private
        )
        subject.module.cpu().load_state_dict(training.best)
        return Result(
            experiment=experiment,
            facts=facts,
            summary=view.summary(),
            view=view,
            model=subject.module.eval(),
            personal=_stays_at_its_site,
        )

    def _put_out_result(
        self, view: RunView, *, parameters: int, message_bytes: int, private: Sequence[str] = ()
    ) -> None:
        summary = view.summary()
        record = result_record(
            summary,
            view.label,
            parameters=parameters,
            message_bytes=message_bytes,
            wall_seconds=summary.seconds,
            private=private,
        )
        self._put_out(names.LABEL, view.label.to_json())
        self._put_out(names.RESULT, json.dumps(record, default=plain))

    def _put_out(self, name: str, text: str) -> None:
        path = self._folder / name
        path.write_text(text, encoding="utf-8")
        self.output[name] = str(path)


def common_description(members: Sequence[Member]) -> DataDescription:
    """What all sites' samples are like; sites whose differ cannot learn together."""
    first = members[0]
    for member in members[1:]:
        for what in ("sample_shape", "outputs", "classification", "tokens"):
            ours, theirs = getattr(member.data, what), getattr(first.data, what)
            if ours != theirs:
                raise DataError(
                    f"the data of {member.site} and {first.site} do not go together: "
                    f"{what.replace('_', ' ')} is {ours} at one and {theirs} at the other"
                )
    return first.data


def _nothing_like(described: DataDescription) -> Examples:
    """No samples, of the right shape and type."""
    x = np.zeros((0, *described.sample_shape), np.int64 if described.tokens else np.float32)
    y = np.zeros(0, np.int64) if described.classification else np.zeros((0, described.outputs), np.float32)
    return Examples(x=x, y=y)


def main() -> None:
    line = open_line(int(sys.argv[1]), ToRunner, ends=Halt)
    begin = line.receive(Begin)
    assert begin is not None
    place = AtServer(line, begin)
    sys.stdout = Spoken(lambda text: line.send(Said(line=text)))
    try:
        reason = perform(Path(begin.bundle), Path(begin.folder), place)
        line.send(Finished(output=place.output) if reason is None else GaveUp(reason=reason))
    except HaltedError as halted:
        print(f"halted: {halted}", file=sys.stderr)


def _stays_at_its_site(client: int) -> torch.nn.Module:
    raise RunError("what a client keeps stays at its site; its own model is not here")


if __name__ == "__main__":
    main()
