"""Logs of the long-running processes: one line for each event, as text or as JSON. Never any data."""

import json
import logging
import sys
import time
import traceback


class PlainLogFormatter(logging.Formatter):
    """2026-01-31 12:00:00 warning  site clinic-a disconnected"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")


class JsonLogFormatter(logging.Formatter):
    """Time in seconds since 1970, level, the part of the program, the message."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1] is not None:
            entry["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(entry, ensure_ascii=False)


def log_to_standard_error(*, as_json: bool = False, level: int = logging.INFO) -> None:
    """Set up the log of a process, in place of any earlier setup."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonLogFormatter() if as_json else PlainLogFormatter()
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
