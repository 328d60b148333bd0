"""Papers reproduced: every table and figure of a paper, ours beside theirs, on one page."""

from winnow.papers.ensemble import ENSEMBLE
from winnow.papers.fedaq import FEDAQ
from winnow.papers.fedclip import FEDCLIP
from winnow.papers.fedprof import FEDPROF
from winnow.papers.few_labels import FEW_LABELS
from winnow.papers.flare import FLARE
from winnow.papers.paper import Paper, PaperItem, PaperRun, ReproductionOptions
from winnow.papers.phones import PHONES
from winnow.papers.remaining_runs import ReproductionPlan, plan_reproduction
from winnow.papers.result_json_lines import (
    DistributionResultLine,
    LinearCaseResultLine,
    MeasuredResultLine,
    RunResultLine,
    TrafficResultLine,
    TruthResultLine,
    read_lines,
    write_lines,
)
from winnow.papers.results_page import write_html_page, write_markdown_page
from winnow.papers.secagg import SECAGG
from winnow.papers.srpfl import SRPFL
from winnow.papers.truth import TRUTH

PAPERS = {
    paper.name: paper for paper in (FEDPROF, SRPFL, SECAGG, FEDAQ, TRUTH, FEW_LABELS, FLARE, FEDCLIP, ENSEMBLE, PHONES)
}

__all__ = [
    "PAPERS",
    "DistributionResultLine",
    "LinearCaseResultLine",
    "MeasuredResultLine",
    "Paper",
    "PaperItem",
    "PaperRun",
    "ReproductionOptions",
    "ReproductionPlan",
    "RunResultLine",
    "TrafficResultLine",
    "TruthResultLine",
    "plan_reproduction",
    "read_lines",
    "write_html_page",
    "write_lines",
    "write_markdown_page",
]
