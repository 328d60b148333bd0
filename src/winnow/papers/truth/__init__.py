"""FedTruthFinder (truth discovery without showing who answered what): figures 3 to 6 and 8, and real crowds besides.

Figures 1, 2 and 7 are drawings and a map. The taxis of figure 6 may not be passed on: synthetic reports of the same
kind take their place.
"""

from winnow.papers.paper import Paper
from winnow.papers.truth.accuracy_figures import CrowdFigure, LightsFigure
from winnow.papers.truth.cost_figures import BytesFigure, TimeFigure
from winnow.papers.truth.curve_item import PublishedNumber
from winnow.papers.truth.dropout_figures import DataLeftFigure, FailureFigure, RankingFailureFigure

LIGHTS = (
    "Synthetic reports in the place of the paper's taxis: 96 events, of which each participant reports a fifth, and"
    " errs at a rate from U[0, 0.5]; half of the participants open a sum; ten repeats a seed (the paper has 50 in"
    " all), worked out from the sums that the protocol opens, without shares. The paper prints no numbers; it finds"
    " α = 3 the best of its updates and logistic ahead of sum. Where too few are left, the last confidences count."
    " Kept shares, which are not in the paper, leave whoever goes in the sums with the last vector."
)

TRUTH = Paper(
    name="truth",
    title="FedTruthFinder, reproduced",
    lead=(
        "Figures 3 to 6 and 8 of FedTruthFinder, with participants who leave for good with probability p an iteration."
        " Figures 3, 4 and 8 are runs of Winnow's private protocol; where accuracy is averaged over many runs, the same"
        " sums are worked out without shares. Where the paper's text gives a number it stands beside ours."
    ),
    items=(
        DataLeftFigure(
            name="fig3",
            title="Figure 3: data left by iteration",
            about="100 participants, each with one datum. Secure aggregation takes two connections an iteration and"
            " is drawn, not run. With kept shares whoever dealt once stays in the sums.",
            x_title="Iteration",
            y_title="Data behind a sum",
            decimals=1,
        ),
        FailureFigure(
            name="fig4",
            title="Figure 4: runs that fail",
            about="100 participants, of whom 50 open a sum; the share of runs (20 a seed) that ended before an"
            " iteration was over.",
            x_title="Iteration",
            y_title="Share of failed runs",
            published=(
                PublishedNumber(series="FedTruthFinder, p = 0.05", x=10, text="about 0.01"),
                PublishedNumber(series="secure aggregation, p = 0.05", x=10, text="about 0.99"),
                PublishedNumber(series="secure aggregation, p = 0.1", x=3, text="more than 0.2"),
                PublishedNumber(series="FedTruthFinder, p = 0.1", x=6, text="works well until here"),
            ),
        ),
        RankingFailureFigure(
            name="fig5",
            title="Figure 5: rankings that fail",
            about="The paper's ranking, of 100 participants in 2t + 1 groups: it fails if a group has nobody left;"
            " its rival fails if one of 2t + 1 is missing. Both are drawn, not run: in Winnow a server that"
            " knows 2t + 1 trusts must not learn the others, which the paper's sums tell it, so participants"
            " are ranked by comparisons in shares. Those take everybody who is ranked until the end. The"
            " paper's 0.04 % has an exponent n/(2t + 1) that theorem 5.3 rounds down (then it is 0.21 %), and"
            " its 96.18 % belongs to t = 15.",
            x_title="t",
            y_title="Share of failed rankings",
            decimals=5,
            published=(
                PublishedNumber(series="groups, p = 0.1", x=10, text="0.0004"),
                PublishedNumber(series="rival, p = 0.1", x=10, text="0.9618"),
                PublishedNumber(series="rival, p = 0.1", x=15, text="(0.9618)"),
            ),
        ),
        LightsFigure(
            name="fig6-participants",
            title="Figure 6(a): accuracy by participants, p = 0.05",
            about=LIGHTS,
            by="participants",
            x_title="Participants",
            y_title="Accuracy",
        ),
        LightsFigure(
            name="fig6-losses",
            title="Figure 6(b): accuracy by the chance to leave, 60 participants",
            about=LIGHTS,
            by="losses",
            x_title="p",
            y_title="Accuracy",
        ),
        *(
            CrowdFigure(
                name=f"crowds-{name.lower()}",
                title=f"Besides the paper: {name}",
                about=f"Accuracy of logistic on a public set of answers (`crowd/{name}` in the data folder), with eight"
                " runs a seed where participants leave; half of them have to be there.",
                crowd=name,
                x_title="p",
                y_title="Accuracy",
            )
            for name in ("bluebird", "rte", "MS", "SP_amt")
        ),
        BytesFigure(
            name="fig8-bytes",
            title="Figure 8(a): what a participant sends",
            about="Ten iterations over the 96 events. The paper prints no numbers.",
            x_title="Participants",
            y_title="Kilobytes",
            decimals=1,
        ),
        TimeFigure(
            name="fig8-time",
            title="Figure 8(b): how long it computes",
            about="Processor time of ten iterations in one process, the server's part included, divided by the"
            " participants; and of a ranking. Of the paper's times one is in the text: about 0.01 s for its"
            " ranking.",
            x_title="Participants",
            y_title="Seconds a participant",
            decimals=4,
        ),
    ),
)
