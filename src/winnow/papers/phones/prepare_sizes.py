"""Sizes of the parties: MOSI's and MOSEI's."""

SMALL, LARGE = 1_283, 16_331
