"""SRPFL (Tziotis et al., 2022): figures 3 to 6, a table of times to a target, and the linear case of section 4.

Figures 1 and 2 are sketches. CIFAR-100 is left out: Winnow has no loader for it.
"""

from winnow.papers.paper import Paper
from winnow.papers.srpfl.linear_figure import LinearFigure
from winnow.papers.srpfl.protocol_table import ProtocolTable
from winnow.papers.srpfl.time_to_accuracy import AccuracyTimeFigure, TimeToTargetTable

DATA_CASES = {
    "cifar10": ("srpfl-cifar10", 0.65, "CIFAR-10, 5 classes a client, 500 images each"),
    "mnist": ("srpfl-mnist", 0.95, "MNIST for EMNIST's first ten classes, 5 classes a client, 600 images each"),
    "small": ("srpfl-mnist-small", 0.94, "MNIST for FEMNIST, 3 classes a client, 150 images each"),
    "writers": ("srpfl-writers", 0.85, "100 of MNIST's writers, each with all ten digits, besides the paper's cases"),
}
"""Preset, target and description by the name of a case."""

FIXED_SPEEDS, DYNAMIC_SPEEDS = (), ("fleet.speeds=dynamic",)
SAMPLED_CLIENTS = ("select.fraction=0.2",)
FIGURE_SETTINGS = {
    "fig3": (FIXED_SPEEDS, "Each client's time is drawn once from Exp(1); all 100 clients participate."),
    "fig4": (
        DYNAMIC_SPEEDS,
        "Times are drawn anew in every round, at rates that differ between clients; all 100 clients participate.",
    ),
    "fig5": (SAMPLED_CLIENTS, "Each client's time is drawn once from Exp(1); 20 of 100 are sampled in every round."),
    "fig6": (
        DYNAMIC_SPEEDS + SAMPLED_CLIENTS,
        "Times are drawn anew in every round; 20 of 100 clients are sampled in each.",
    ),
}
"""Settings and their meaning by figure."""

FIGURES = tuple(
    AccuracyTimeFigure(
        name=f"{figure}-{case}",
        title=f"Figure {figure[3:]}: {preset}",
        preset=preset,
        target=target,
        settings=settings,
        about=f"{data}. {meaning}",
        heavy=case in ("cifar10", "mnist"),
    )
    for figure, (settings, meaning) in FIGURE_SETTINGS.items()
    for case, (preset, target, data) in DATA_CASES.items()
)

PROTOCOLS = tuple(
    ProtocolTable(
        name=f"protocols-{case}",
        title=f"Two protocols of evaluation: {preset}",
        preset=preset,
        targets=(target, 0.8),
        about=f"{data}. Each client's time is drawn once from Exp(1); all 100 clients participate.",
    )
    for case in ("small", "writers")
    for preset, target, data in [DATA_CASES[case]]
)

SRPFL = Paper(
    name="srpfl",
    title="SRPFL, reproduced",
    lead=(
        "Figures 3 to 6 and the linear case of Tziotis et al., Straggler-Resilient Personalized Federated Learning"
        " (2022). The paper prints curves but no numbers, so ours cannot be compared directly. Mean ± standard"
        " deviation over seeds. Accuracy is the mean over clients, each with its own model on its own test samples."
        " MNIST stands in for EMNIST and FEMNIST; CIFAR-100 is left out."
    ),
    items=(
        LinearFigure(name="linear", title="The linear case: theorem 4.6"),
        TimeToTargetTable(name="times", title="Time to a target accuracy", figures=FIGURES),
        *PROTOCOLS,
        *FIGURES,
    ),
)
