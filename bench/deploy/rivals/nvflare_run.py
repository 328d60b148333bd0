"""Prepare, start and use a deployment of NVFlare on this machine: CLIENT_SCRIPT SITES FLOATS ROUNDS LOG."""

import sys
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import PocEnv

if __name__ == "__main__":
    script, sites, floats, rounds, log = sys.argv[1:]
    start = Path(log).with_name("start.npy")
    np.save(start, np.zeros(int(floats), np.float32))
    recipe = NumpyFedAvgRecipe(
        name="exchange",
        initial_ckpt=str(start),
        min_clients=int(sites),
        num_rounds=int(rounds),
        train_script=script,
        train_args=log,
    )
    run = recipe.execute(PocEnv(num_clients=int(sites)))
    print(run.get_result())
