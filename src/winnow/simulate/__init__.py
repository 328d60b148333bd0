"""Federations that live in this process, on virtual time."""

from winnow.simulate.federation import InProcess, InProcessExchange

__all__ = ["InProcess", "InProcessExchange"]
