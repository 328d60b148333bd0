"""Speed, each figure as a ratio to a stated baseline in the same run.

python -m bench                 everything in one process
python -m bench rounds          one of them
python -m bench deploy          federations of processes, which take minutes and gigabytes of disk
python -m bench deploy sites    one of them
python -m bench clients         who has bad data: how well that is told, not how fast; takes an hour
"""

import sys

from bench import (
    assessments,
    clients,
    cohort,
    contribution,
    deploy,
    encryption,
    few_labels,
    gpu,
    homomorphic,
    letters,
    populations,
    profiling,
    query,
    rounds,
    secure,
    selection,
    statistics,
    tree_methods,
    trees,
    ui,
    ui_watched,
    vertical_trees,
    wire,
)
from bench.table import machine, show

BENCHES = {
    "rounds": rounds,
    "cohort": cohort,
    "profiling": profiling,
    "assessments": assessments,
    "contribution": contribution,
    "few-labels": few_labels,
    "selection": selection,
    "populations": populations,
    "gpu": gpu,
    "encryption": encryption,
    "homomorphic": homomorphic,
    "secure": secure,
    "wire": wire,
    "statistics": statistics,
    "query": query,
    "letters": letters,
    "trees": trees,
    "tree-methods": tree_methods,
    "ui": ui,
    "ui-watched": ui_watched,
    "vertical-trees": vertical_trees,
}


def main() -> None:
    asked = sys.argv[1:]
    if asked[:1] == ["clients"]:
        clients.main(asked[1:])
        return
    benches, asked = (deploy.BENCHES, asked[1:]) if asked[:1] == ["deploy"] else (BENCHES, asked)
    chosen = asked or list(benches)
    unknown = [name for name in chosen if name not in benches]
    if unknown:
        sys.exit(f"no benchmark {unknown[0]!r}; there are {', '.join(benches)}")
    print(machine())
    for name in chosen:
        bench = benches[name]
        show((bench.__doc__ or name).splitlines()[0], bench.measure())


if __name__ == "__main__":
    main()
