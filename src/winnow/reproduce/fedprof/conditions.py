"""Figure 1: what class imbalance and low-quality data do to FedAvg on MNIST (section 3.1)."""

from dataclasses import dataclass

from winnow.experiment.resolve import resolve
from winnow.report.numbers import Spread, spread_text
from winnow.reproduce.blocks import Block, Drawing, Grid
from winnow.reproduce.drawing import curves
from winnow.reproduce.fedprof.content import content
from winnow.reproduce.lines import Lines, runs_of
from winnow.reproduce.paper import Piece, Run, Wanted

IMBALANCED = "data.partition = { name = 'dominant-class', share = 0.55 }"
SPOILED = (
    "data.corruptions = [{ name = 'irrelevant', fraction = 0.15 }, { name = 'blur', fraction = 0.25 },"
    " { name = 'salt-and-pepper', fraction = 0.25, density = 0.3 }]"
)
CONDITIONS = {
    "iid": (),
    "non-iid": (IMBALANCED,),
    "low-quality": (SPOILED,),
    "non-iid-low-quality": (IMBALANCED, SPOILED),
}


@dataclass(frozen=True, kw_only=True)
class ConditionsFigure(Piece):
    """One run a condition and seed; a line's `algorithm` is the condition."""

    def runs(self, wanted: Wanted) -> list[Run]:
        setup = content("setups.toml")[self.name]
        return [
            Run(
                of=self.name,
                algorithm=condition,
                experiment=resolve(setup, sets=(*sets, *wanted.sets), seed=seed, rounds=wanted.rounds),
            )
            for condition, sets in CONDITIONS.items()
            for seed in range(wanted.seeds)
        ]

    def body(self, lines: Lines) -> list[Block]:
        groups = {condition: runs_of(lines, self.name, condition) for condition in CONDITIONS}
        if not any(groups.values()):
            return []
        best = {name: Spread.of(run.best for run in runs) for name, runs in groups.items()}
        rows = [(name, str(len(runs)), spread_text(best[name], decimals=3)) for name, runs in groups.items()]
        caption = (
            "FedAvg on MNIST, 100 clients, 30 a round: accuracy on the reference set under four conditions of the data"
        )
        return [
            Drawing(curves(groups, "accuracy"), caption),
            Grid("Best accuracy.", ("Condition", "Seeds", "Best"), rows),
        ]
