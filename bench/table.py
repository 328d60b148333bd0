"""Rows of a benchmark, each with its baseline from the same run."""

import os
import platform
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    value: float
    unit: str
    baseline: float
    goal: str = ""


def show(title: str, rows: list[Row]) -> None:
    print(f"\n{title}")
    for row in rows:
        ratio = f"{row.value / row.baseline:6.2f} × baseline"
        print(f"  {row.name:<36}{row.value:10.2f} {row.unit:<4}{ratio}  {row.goal}")


def machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    )
