"""A number of runs, seeds or processes on a command line."""

import argparse


def positive_number(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be at least 1")
    return number
