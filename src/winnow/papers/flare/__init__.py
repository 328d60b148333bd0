"""The platform paper on NVIDIA FLARE: figures 4 (heterogeneous clients), 6 (split learning) and 7 (statistics)."""

from winnow.papers.flare.dirichlet_figures import (
    COMPARISON,
    SWEEP,
    AlgorithmComparison,
    HeterogeneitySweep,
    TuningTable,
)
from winnow.papers.flare.split_networks import lenet5, small_cnn
from winnow.papers.flare.split_table import SplitTable
from winnow.papers.flare.statistics_table import StatisticsTable
from winnow.papers.flare.tuned_methods import TUNING
from winnow.papers.paper import Paper

FLARE = Paper(
    name="flare",
    title="NVIDIA FLARE, reproduced",
    lead=(
        "Experiments of section 4 of the NVIDIA FLARE paper, done with Winnow. Its figures print no numbers; those of"
        " figure 4 are the final scores that NVFlare's own CIFAR-10 example states. Ours come from a smaller network"
        " and shorter runs, so levels do not compare: what compares is the order of the curves."
    ),
    items=(
        TuningTable(name=TUNING, title="How the settings of figure 4 were chosen"),
        HeterogeneitySweep(
            name=SWEEP,
            title="Figure 4(a): FedAvg with increasing heterogeneity",
            about="Eight clients share the 50,000 training images of CIFAR-10, each class mixed by a Dirichlet"
            " distribution; all of them take part in each round. Smaller α, less alike.",
        ),
        AlgorithmComparison(
            name=COMPARISON,
            title="Figure 4(b): four algorithms at α = 0.1",
            about="The same splits for all. The paper: FedOpt and SCAFFOLD converge markedly faster and end higher than"
            " FedAvg and FedProx.",
        ),
        SplitTable(
            name="fig6-cifar10",
            title="Figure 6: split learning on CIFAR-10",
            data_set="cifar10",
            network=small_cnn,
            epochs=5,
            learning_rate=0.01,
            momentum=0.9,
            about="One owner has the images and the convolutions, another the labels and the dense layers; batches of"
            " 64. The paper compares the time of 15,625 batches in a plain script, routed through the server, and"
            " between clients directly, which Winnow does not offer: sites open no port.",
        ),
        SplitTable(
            name="fig6-mnist",
            title="Split learning on MNIST",
            data_set="mnist",
            network=lenet5,
            epochs=3,
            learning_rate=0.05,
            momentum=0.5,
            about="LeNet-5, three epochs of 60,000 digits in batches of 64; 10,000 others are scored.",
        ),
        StatisticsTable(
            name="fig7",
            title="Figure 7: federated statistics",
            about="The paper's figure is a screenshot of a page with each client's and the global statistics and"
            " histograms. `winnow stats` opens the global ones alone, as sums of shares; an owner's own are told only"
            " where it allows that by name. Adult, 32,561 rows dealt to five owners.",
        ),
    ),
)
