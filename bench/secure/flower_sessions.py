"""Sessions of Flower's SecAgg+ in one process, run by Flower's interpreter: a line of JSON for each that ends.

Flower's own workflow and client mod do all the work. Between them stands a grid that hands messages to one client after
another. Left out, and counted nowhere: network, other processes, training, writing and reading messages, the model, and
what a strategy does with the sum.

Sessions differ in how many clients drop out once all have masked their vectors. Up to that moment they are one session,
and there the process forks. A session that takes more processor seconds than the limit ends without a line.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.compat.common.recorddict_compat import arrayrecord_to_parameters, fitres_to_recorddict
from flwr.proto.message_pb2 import Message as Written
from flwr.server import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

BOUND = 0.05
"""Values are cut off here."""
LEVELS = 256
NO_MODEL = Parameters(tensors=[], tensor_type="numpy.ndarray")


class Everybody(FedAvg):
    """Invites all clients, sends them no model, and takes the mean as the workflow has worked it out."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.nodes = range(1, clients + 1)

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> list[Any]:
        return [(SimpleNamespace(node_id=node), FitIns(NO_MODEL, {})) for node in self.nodes]

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> tuple[Parameters, Any]:
        return results[0][1].parameters, {}


class Clients(Grid):
    """All clients, one after another in this process, with the same update."""

    run = create_message = get_node_ids = push_messages = pull_messages = set_run = None
    """What the workflow does not use."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.dropouts = options, 0.0
        self.update = np.random.default_rng(0).normal(0, 0.01, (options.parameters // 100, 100)).astype(np.float32)
        self.costs: Counter[str] = Counter()
        """Seconds of the server; seconds and bytes of one client, a mean over those who took part in each step."""
        nodes = range(1, options.clients + 1)
        self._contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}
        self._training = 0.0
        self._servers_turn = time.process_time()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        self.stop_servers_turn()
        sent = list(messages)
        stage = sent[0].content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        replies = [self._answer(message, 1 / len(sent)) for message in sent]
        if stage == Stage.COLLECT_MASKED_VECTORS:
            replies = self._of_those_who_stay(replies)
        self._servers_turn = time.process_time()
        return replies

    def stop_servers_turn(self) -> None:
        self.costs["server"] += time.process_time() - self._servers_turn

    def _answer(self, message: Message, share: float) -> Message:
        written = message_to_proto(message).SerializeToString()
        self.costs["down"] += share * len(written)
        arrived = message_from_proto(Written.FromString(written))
        self._training, start = 0.0, time.process_time()
        reply = secaggplus_mod(arrived, self._contexts[message.metadata.dst_node_id], self._train)
        self.costs["client"] += share * (time.process_time() - start - self._training)
        written = message_to_proto(reply).SerializeToString()
        self.costs["up"] += share * len(written)
        return message_from_proto(Written.FromString(written))

    def _train(self, message: Message, context: Context) -> Message:
        start = time.process_time()
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([self.update]), num_examples=1, metrics={})
        reply = Message(fitres_to_recorddict(result, keep_input=False), reply_to=message)
        self._training = time.process_time() - start
        return reply

    def _of_those_who_stay(self, replies: list[Message]) -> list[Message]:
        """Returns once for each share of dropouts, every time in a process of its own."""
        left = self.options.limit - int(time.process_time())
        for dropouts in self.options.dropouts:
            if process := os.fork():
                os.waitpid(process, 0)
                continue
            resource.setrlimit(resource.RLIMIT_CPU, (left, left))
            self.dropouts = dropouts
            return replies[round(dropouts * len(replies)) :]
        sys.exit()


def main() -> None:
    options = _options()
    resource.setrlimit(resource.RLIMIT_CPU, (options.limit, resource.RLIM_INFINITY))
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    context = LegacyContext(Context(1, 0, {}, RecordDict(), {}), strategy=Everybody(options.clients))
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    workflow = SecAggPlusWorkflow(
        num_shares=options.holders,
        reconstruction_threshold=options.needed,
        max_weight=1,
        clipping_range=BOUND,
        quantization_range=LEVELS,
        modulus_range=1 << options.bits,
    )
    clients = Clients(options)
    workflow(clients, context)
    clients.stop_servers_turn()
    _check(context, clients.update)
    print(json.dumps({"dropouts": clients.dropouts, **clients.costs}), flush=True)


def _check(context: LegacyContext, update: np.ndarray) -> None:
    """The mean of what all have sent is that, but for rounding."""
    found = parameters_to_ndarrays(arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], True))
    assert np.abs(found[0] - np.clip(update, -BOUND, BOUND)).max() < 2 * BOUND / LEVELS, "the mean is wrong"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("clients", "parameters", "holders", "needed", "bits", "limit"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dropouts", type=float, nargs="+", required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
