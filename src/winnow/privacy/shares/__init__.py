"""Numbers in shares: owners compute together, and only what they agreed to open becomes known.

`party` is one party of a step, driven by messages; `secure_comparison` is the part of it that MPyC computes.
"""
