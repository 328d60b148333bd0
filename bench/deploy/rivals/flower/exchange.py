"""An array goes to all nodes, which add one to it; their mean goes out next."""

import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

NODES = 5
server = ServerApp()
client = ClientApp()


@client.train()
def add(message: Message, context: Context) -> Message:
    [array] = message.content["arrays"].to_numpy_ndarrays()
    content = RecordDict({"arrays": ArrayRecord([array + 1]), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    floats, rounds, log = (context.run_config[name] for name in ("floats", "rounds", "log"))

    def passed(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Called after every round, and before the first."""
        if number:
            with Path(log).open("a") as file:
                file.write(f"{time.time()}\n")
        return None

    start = ArrayRecord([np.zeros(floats, np.float32)])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=NODES, min_available_nodes=NODES)
    strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=passed)
