"""The command line of programs that try odd inputs by their number: `python tests/statement_fuzz.py 0 5000`."""

import sys
import traceback
from collections.abc import Callable


def fuzz_command(attempt: Callable[[int], int], what: str, counted: str) -> None:
    """Tries inputs from the first number of the command line to the one before the second, whatever happens. Prints
    tracebacks, the sum of what attempts return, and how many failed; ends with 1 if one did.
    """
    try:
        first, last = map(int, sys.argv[1:])
    except ValueError:
        sys.exit(f"usage: python {sys.argv[0]} FIRST LAST, the numbers of {what}; the last is not tried")
    total = failed = 0
    for number in range(first, last):
        try:
            total += attempt(number)
        except Exception:
            failed += 1
            traceback.print_exc()
    print(f"{what} {first} to {last - 1}: {total} {counted}, {failed} ended in a traceback")
    sys.exit(min(failed, 1))
