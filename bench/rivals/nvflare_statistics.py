"""NVFlare's own statistics of the same files, in its simulator: FOLDER OWNERS OUT [QUANTILES].

It runs in an environment with nvflare, pandas and fastdigest. Groups are given as data sets, which it does have.
Columns that are not numbers, correlations and empty groups it does not have.
"""

import sys
from pathlib import Path

import pandas as pd
from nvflare.app_opt.statistics.df.df_core_statistics import DFStatisticsCore
from nvflare.recipe import SimEnv
from nvflare.recipe.fedstats import FedStatsRecipe

NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
RANGES = ((0, 100), (0, 1_500_000), (0, 20), (0, 100_000), (0, 5_000), (0, 100))


class OwnerStatistics(DFStatisticsCore):
    """An owner's file, as three data sets."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def initialize(self, fl_ctx: object) -> None:
        site = fl_ctx.get_identity_name()  # type: ignore[attr-defined]
        rows = pd.read_csv(Path(self.folder) / f"{site}.csv")
        numbers = rows[list(NUMBERS)]
        by_sex = {sex: numbers[rows["sex"] == sex] for sex in ("Female", "Male")}
        self.data = {"all": numbers, **by_sex}


if __name__ == "__main__":
    folder, owners, out, *levels = sys.argv[1:]
    asked: dict[str, object] = {
        "count": {},
        "mean": {},
        "sum": {},
        "stddev": {},
        "histogram": {name: {"bins": 20, "range": bounds} for name, bounds in zip(NUMBERS, RANGES, strict=True)},
    }
    if levels:
        asked["quantile"] = {"*": [float(level) for level in levels]}
    sites = [f"owner-{place}" for place in range(int(owners))]
    recipe = FedStatsRecipe(
        name="statistics",
        stats_output_path="statistics.json",
        sites=sites,
        statistic_configs=asked,
        stats_generator=OwnerStatistics(folder),
        min_count=10,
        min_noise_level=0.1,
        max_noise_level=0.3,
        max_bins_percent=100,
    )
    run = recipe.execute(SimEnv(clients=sites, num_threads=len(sites), workspace_root=out))
    print(run.get_result())
