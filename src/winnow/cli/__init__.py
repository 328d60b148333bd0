"""The command line: one short file a command."""

from winnow.cli.app import main

__all__ = ["main"]
