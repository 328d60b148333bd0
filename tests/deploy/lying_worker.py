"""A job's process at a site that lies: it does the work, and sends something odd in its place. Run by its path."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from hostile import LIES
from winnow.core import Reply
from winnow.deploy.jobs import worker
from winnow.deploy.jobs.task_executor import TaskExecutor

TOLD = (
    *("no parts", "a part too few", "a part too many", "all arrays of bfloat16", "an array that is no UTF-8"),
    *("an array that is empty", "an array that is 0-d", "arrays by other names", "values that are not a number"),
    *("values that are infinite", "metrics that are 1e308", "a surplus metric", "ten thousand metrics"),
    *(
        "peer messages to strangers",
        "a failure of many lines",
        "one array of uint8",
        "values that are as large as can be",
    ),
)
"""What crosses the wire: the rest cannot even be written into a file."""


class Liar(TaskExecutor):
    def _result(self, task: Any, outcome: Any, seconds: float) -> Any:
        place = task.round * 5 + outcome.task.client
        if isinstance(outcome, Reply):
            outcome = LIES[TOLD[place % len(TOLD)]](outcome, np.random.default_rng(place))
        return super()._result(task, outcome, seconds)


if __name__ == "__main__":
    worker.TaskExecutor = Liar
    worker.main()
