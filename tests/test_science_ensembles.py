"""What docs/results/ensemble.md says of clusters, on a reduced case with a seed of its own."""

import pytest

from support.needs import DATA
from winnow.data import catalogue
from winnow.papers import PAPERS, ReproductionOptions
from winnow.papers.ensemble.rival_table import RivalTable

SEED, ROUNDS = 77, 40


@pytest.mark.slow(part="science")
def test_on_movielens_it_is_not_the_clusters_that_help() -> None:
    """Leaves by occupation are no better than one model of a leaf's size, and four models by everybody are ahead."""
    if "movielens" not in {each.name for each in catalogue() if each.present}:
        DATA.skip("MovieLens is missing")
    item = next(each for each in PAPERS["ensemble"].items if each.name == "movielens")
    assert isinstance(item, RivalTable)
    rows = {row.name: row for row in item.rows}
    wanted = ("fl", "occupation-mean", "everybody-mean")
    found = {
        name: item.measure_rows([rows[name]], item.tried[1], SEED, ReproductionOptions(rounds=ROUNDS))[0].test_best
        for name in wanted
    }
    one, clusters, everybody = (found[name] or 0.0 for name in wanted)
    assert one > 0.6, "chance is 0.5"
    assert clusters < one + 0.005
    assert everybody > clusters
