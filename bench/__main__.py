"""Speed, each figure as a ratio to a stated baseline in the same run.

python -m bench             everything
python -m bench rounds      one of them
"""

import sys

from bench import cohort, encryption, gpu, populations, profiling, rounds, selection
from bench.table import machine, show

BENCHES = {
    "rounds": rounds,
    "cohort": cohort,
    "profiling": profiling,
    "selection": selection,
    "populations": populations,
    "gpu": gpu,
    "encryption": encryption,
}


def main() -> None:
    chosen = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in chosen if name not in BENCHES]
    if unknown:
        sys.exit(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHES)}")
    print(machine())
    for name in chosen:
        bench = BENCHES[name]
        show((bench.__doc__ or name).splitlines()[0], bench.measure())


if __name__ == "__main__":
    main()
