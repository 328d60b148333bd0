"""The census table Adult as a federation of five owners: a CSV file an owner, and a federation file."""

import os
from pathlib import Path

import numpy as np
import pandas as pd

NUMBERS = {
    "age": (0, 100),
    "fnlwgt": (0, 1_500_000),
    "education-num": (0, 20),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (0, 100),
}
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)
OWNERS = 5
TABLE = "people"


def adult_rows() -> pd.DataFrame | None:
    """The training rows, from $WINNOW_DATA; None where they are not there."""
    path = Path(os.environ.get("WINNOW_DATA", "")) / "tabular" / "adult.data.gz"
    if not path.is_file():
        return None
    return pd.read_csv(path, names=list(COLUMNS), skipinitialspace=True, na_values="?")


def write_federation(rows: pd.DataFrame, folder: Path) -> Path:
    """The rows divided by chance among five owners of different size."""
    owner = np.random.default_rng(0).choice(OWNERS, len(rows), p=[0.4, 0.25, 0.2, 0.1, 0.05])
    files = [folder / f"owner-{place}.csv" for place in range(OWNERS)]
    for place, file in enumerate(files):
        rows[owner == place].to_csv(file, index=False)
    lines = [f"[tables.{TABLE}]", f"files = {[str(file) for file in files]}", f"[tables.{TABLE}.columns]"]
    for name in rows.columns:
        if name in NUMBERS:
            what = f'type = "integer", bounds = {list(NUMBERS[name])}'
        else:
            what = f"values = {sorted(rows[name].dropna().unique())}"
        lines.append(f'{name} = {{ level = "protected", {what} }}')
    federation = folder / "federation.toml"
    federation.write_text("\n".join(lines).replace("'", '"') + "\n")
    return federation
