"""FedAQ, accelerated and quantised: the three settings of the paper's section 6, and the conditions that they miss."""

from winnow.papers.fedaq.conditions import ConditionsTable
from winnow.papers.fedaq.round_time import CNN, LOGISTIC, MLP, TimedSetting
from winnow.papers.fedaq.target_table import TargetTable
from winnow.papers.paper import Paper

DIRICHLET = "data.partition={name='dirichlet', alpha=0.5}"
HETEROGENEOUS = (
    " Here each class is split over the clients by a Dirichlet distribution with α = 0.5. The paper has neither a"
    " theorem nor an experiment for such data: its clients have the same distribution."
)


def _setting(
    name: str, title: str, target: float, shape: tuple[int, ...], timed: TimedSetting, about: str
) -> tuple[TargetTable, TargetTable]:
    """With the paper's split, and with unlike clients."""
    return (
        TargetTable(
            name=name,
            title=title,
            preset=f"fedaq-{name}",
            target=target,
            sample_shape=shape,
            timed=timed,
            about=about,
            heavy=name == "cnn",
        ),
        TargetTable(
            name=f"{name}-dirichlet",
            title=f"{title}, clients unlike",
            preset=f"fedaq-{name}",
            target=target,
            sample_shape=shape,
            timed=timed,
            about=about + HETEROGENEOUS,
            settings=(DIRICHLET,),
            heavy=name == "cnn",
        ),
    )


FEDAQ = Paper(
    name="fedaq",
    title="FedAQ, reproduced",
    lead=(
        "Rounds, bits and seconds to the accuracies of section 6 of the FedAQ paper (federated optimisation with"
        " acceleration and quantisation), which has one run of each and no deviations. Accuracy is that of the model"
        " (w^ag, which the theorems bound; the authors' code scores w) on the 10,000 official test images. Quantised"
        " rows use QSGD in buckets of 512 with the largest size as norm, which is unbiased; min–max rows use the"
        " quantiser of the authors' code. What goes down is never quantised here."
    ),
    items=(
        ConditionsTable(name="conditions", title="The paper's conditions, and what these settings make of them"),
        *_setting(
            "logistic",
            "Logistic regression on MNIST",
            0.9028,
            (1, 28, 28),
            LOGISTIC,
            "16 clients, 300 rounds of 20 steps, η = 0.002, μ = 0.1.",
        ),
        *_setting(
            "mlp",
            "An MLP on MNIST",
            0.976,
            (1, 28, 28),
            MLP,
            "784-200-200-10, 18 clients, 50 rounds of 100 steps, η = 0.1, μ = 0.01.",
        ),
        *_setting(
            "cnn",
            "A CNN on CIFAR-10",
            0.654,
            (3, 32, 32),
            CNN,
            "Convolutions of 20 and 50 channels and a dense layer of 512, 8 clients, 100 rounds of 100 steps, η = 0.01,"
            " μ = 0.2. The paper's seconds fit 18 devices, not 8, so ours are those of 18.",
        ),
    ),
)
