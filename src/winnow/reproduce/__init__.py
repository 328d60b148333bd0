"""Papers reproduced: every table and figure of a paper, ours beside theirs, on one page."""

from winnow.reproduce.fedprof import FEDPROF
from winnow.reproduce.lines import LinearLine, RunLine, SampleLine, UplinkLine, read_lines, write_lines
from winnow.reproduce.page import write_page, write_text_page
from winnow.reproduce.paper import Paper, Piece, Run, Wanted
from winnow.reproduce.plan import Plan, plan
from winnow.reproduce.secagg import SECAGG
from winnow.reproduce.srpfl import SRPFL

PAPERS = {paper.name: paper for paper in (FEDPROF, SRPFL, SECAGG)}

__all__ = [
    "PAPERS",
    "LinearLine",
    "Paper",
    "Piece",
    "Plan",
    "Run",
    "RunLine",
    "SampleLine",
    "UplinkLine",
    "Wanted",
    "plan",
    "read_lines",
    "write_lines",
    "write_page",
    "write_text_page",
]
