"""Cyclic weight transfer (Chang et al., 2018): the model is passed from client to client, and each trains it on."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from winnow.core import AnyEvent, Federation, Reply, Until
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Algorithm, Recipe
from winnow.learn.collect import RoundResult, mean_parts
from winnow.learn.reply_checks import Rejection, check_replies, is_bounded
from winnow.learn.round_loop import Schedule
from winnow.learn.selection import SelectedClients, Selection, UniformSelector
from winnow.learn.training_workflow import TrainingWorkflow


class CyclicSchedule(Schedule):
    """A round is one pass over the selected clients, one after another; the last one's model is the round's.

    They are visited by number, or in an order that is drawn for every round. A client that fails is passed over.
    Whatever the later clients report (a loss, a profile) is of another model than the first one's, whose report alone
    the selection observes.
    """

    name: Literal["cyclic"] = "cyclic"
    order: Literal["fixed", "shuffled"] = "fixed"
    needs: ClassVar[Mapping[str, str]] = {"aggregate": "partial"}

    def conflict(self, whole: Algorithm) -> str | None:
        if whole.client.needs:
            name = getattr(whole.client, "name", "")
            return (
                f"schedule.name = 'cyclic' hands models from client to client; client.name = {name!r} needs the server"
            )
        return None

    def run(self, training: TrainingWorkflow, selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        while training.round < training.rounds:
            context = training.begin(federation)
            selected = selection.propose(context)
            yield from training.announce(selected, federation)
            clients = selected.clients if self.order == "fixed" else context.rng.permutation(selected.clients)
            gathered = _pass_on(clients.tolist(), selected, training, federation)
            gathered = training.apply(gathered, federation)
            training.observe(selection, context, gathered.reported)
            yield from training.finish(gathered, selection, federation)


def _pass_on(
    clients: list[int], selected: SelectedClients, training: TrainingWorkflow, federation: Federation
) -> RoundResult:
    """Have the clients train in turn, as many as the selection waits for and for as long."""
    model, sizes, begun = training.shared, federation.population.sizes, federation.clock.now
    replies, seconds = selected.until.replies, selected.until.seconds
    folded, answered, refused = list[Reply](), list[Reply](), list[Rejection]()
    for client in clients:
        if len(folded) == replies:
            break
        left = None if seconds is None else begun + seconds - federation.clock.now
        tasks = training.tasks([client], sizes, payload={**training.payload, "model": model})
        with federation.dispatch(tasks, Until(seconds=left)) as exchange:
            outcomes = list(exchange)
        sound, unsound, counted = check_replies(outcomes, training.expected)
        refused += unsound
        answered += counted
        for reply in sound:
            if is_bounded(reply.payload["model"]):
                folded.append(reply)
                model = dict(reply.payload["model"])
            else:
                refused.append(
                    Rejection(client=client, reason="the update contains values that are not finite or too large")
                )
    return RoundResult(
        model=model,
        parts=mean_parts(folded),
        aggregated=folded,
        reported=folded[:1],
        rejected=refused,
        answered=answered,
    )


cyclic = Recipe(
    name="cyclic",
    summary="the model is passed from client to client",
    select=UniformSelector,
    aggregate=PartialAggregation,
    schedule=CyclicSchedule,
)
