"""Federated ensembles (Hejazinia et al., 2022) on data that can be had, with the rivals that the paper leaves out."""

from typing import Any

from winnow.papers.ensemble.ensemble_rows import FL, EnsembleRow, rival_rows
from winnow.papers.ensemble.rival_table import RivalTable, TriedSettings
from winnow.papers.paper import Paper

MOVIELENS: dict[str, dict[str, Any]] = {
    "age": {"name": "column", "column": "age", "count": 4},
    "occupation": {"name": "column", "column": "occupation", "count": 4},
    "k-means": {"name": "k-means", "columns": ("age", "gender", "occupation"), "count": 4},
}
ADULT: dict[str, dict[str, Any]] = {
    "age": {"name": "column", "column": "age", "count": 4},
    "education": {"name": "column", "column": "education-num", "edges": (9.5, 10.5, 13.5)},
}
CREDIT = {"limit": {"name": "column", "column": "LIMIT_BAL", "count": 4}}
TRIED = (
    TriedSettings(name="rate 0.03, 0.02", rate=0.03, over_rate=0.02),
    TriedSettings(name="rate 0.1, 0.02", rate=0.1, over_rate=0.02),
    TriedSettings(name="rate 0.1, 0.1", rate=0.1, over_rate=0.1),
)
ONE_ROW = (
    TriedSettings(name="rate 0.05, 0.02", rate=0.05, over_rate=0.02),
    TriedSettings(name="rate 0.1, 0.1", rate=0.1, over_rate=0.1),
)
NOISY = (
    TriedSettings(name="rate 0.02, 0.02", rate=0.02, over_rate=0.02),
    TriedSettings(name="rate 0.05, 0.1", rate=0.05, over_rate=0.1),
)
COUNTS = (2, 4, 8, 16)


def dp_table(epsilon: float) -> RivalTable:
    """Ensembles under differential privacy (table 9); nobody's labels may make clusters."""
    return RivalTable(
        name=f"adult-dp-{epsilon:g}",
        title=f"Adult, ε = {epsilon:g} at δ = 1e-5",
        preset="ensemble-adult",
        rows=tuple(row for row in rival_rows(ADULT) if row.opt_in is None and "loss" not in row.name),
        tried=NOISY,
        epsilon=epsilon,
        about=(
            "Noise at the server, on bounded updates of a tenth of the clients in each round, by Poisson sampling;"
            " as much of it as every client's ε takes. Four models by everybody cost four times the rounds, and so have"
            " more noise. The over-arch is trained on samples of those who opted in, without noise."
        ),
    )


ENSEMBLE = Paper(
    name="ensemble",
    title="Federated ensembles",
    lead=(
        "A leaf for each cluster of clients, combined by mean, median, maximum or an over-arch network, against one"
        " federated model of a leaf's size and all that may be behind the gain: width, other seeds, random clusters,"
        " labels of users who opted in. The paper's Taobao, CelebA and production data cannot be had; its gains there"
        " were +0.27 to +1.92 % (mean) and +0.43 to +2.31 % (over-arch)."
    ),
    items=(
        RivalTable(
            name="movielens",
            title="MovieLens: who likes a film",
            preset="ensemble-movielens",
            rows=rival_rows(MOVIELENS),
            tried=TRIED,
            left_out_users=0.2,
            about=(
                "Users are clients; four stars or more is the label. A fifth of the users, others for each seed, are"
                " the test set. A tenth of the others opted in."
            ),
        ),
        RivalTable(
            name="movielens-count",
            title="MovieLens: how many random clusters (figure 2)",
            preset="ensemble-movielens",
            rows=(
                FL,
                *(
                    EnsembleRow(
                        name=f"random-{count}-{way}",
                        title=f"{count} random clusters, {way}",
                        clusters={"name": "random", "count": count},
                        combine=way,
                    )
                    for way in ("mean", "over-arch")
                    for count in COUNTS
                ),
            ),
            tried=TRIED[1:2],
            left_out_users=0.2,
            about="As above, with another number of leaves; the settings are the second of those tried.",
        ),
        RivalTable(
            name="adult",
            title="Adult, ε = ∞",
            preset="ensemble-adult",
            rows=tuple(row for row in rival_rows(ADULT) if "loss" not in row.name),
            tried=ONE_ROW,
            about="Every person is a client with one row. The official test rows are the reference and the test set.",
        ),
        dp_table(3.78),
        dp_table(1.56),
        RivalTable(
            name="credit",
            title="Credit default, ε = ∞",
            preset="ensemble-adult",
            sets=("data.name=credit", "data.reference=3000", "data.test=6000"),
            rows=tuple(row for row in rival_rows(CREDIT) if "loss" not in row.name),
            tried=ONE_ROW[:1],
            about="Every person is a client with one row; clusters by the limit of their credit.",
        ),
    ),
)
