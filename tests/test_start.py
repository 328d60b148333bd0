"""A run gets going soon: what the first round does not need is not imported before it."""

import subprocess
import sys
from pathlib import Path

FIRST_ROUND = """
import sys
import winnow.cli.run, winnow.experiment.run_folders, winnow.progress.live_display
from winnow.experiment.run import run_experiment
from winnow.experiment.build_training_workflow import RunInputs
from world import blobs, experiment

imported = []
run_experiment(
    experiment(rounds=1),
    inputs=RunInputs(dataset=blobs()),
    on_event=lambda event: imported.append({name.partition(".")[0] for name in sys.modules}),
)
heavy = {"plotly", "scipy", "sklearn", "pyarrow", "pandas", "ray"} & imported[-1]
sys.exit(f"before the first round's end {heavy} were imported" if heavy else 0)
"""


def test_nothing_heavy_but_torch_is_imported_before_the_first_round_ends():
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", FIRST_ROUND], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
