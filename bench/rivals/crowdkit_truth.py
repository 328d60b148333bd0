"""GLAD and MACE of crowd-kit, in an environment of its own: `python crowdkit_truth.py label.csv SEEDS`.

Prints JSON: for each method a list of predictions, one a seed, each a label by item. GLAD draws nothing at random.
"""

import json
import sys

import pandas
from crowdkit.aggregation import GLAD, MACE


def main(path: str, seeds: int) -> None:
    answers = pandas.read_csv(path, dtype=str).rename(columns={"item": "task"})[["task", "worker", "label"]]
    methods = {"GLAD": [GLAD()], "MACE": [MACE(random_state=seed) for seed in range(seeds)]}
    found = {name: [each.fit_predict(answers).to_dict() for each in runs] for name, runs in methods.items()}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
