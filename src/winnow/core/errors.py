"""The tree of exceptions. Every message is one line fit for a user: what is wrong, where, and what to do.

WinnowError
├── ConfigError      a setting is unknown, of the wrong type, or impossible
├── DataError        data are missing, malformed or do not fit the request
├── ModelError       a model cannot be built, trained or profiled as asked
│   └── OwnCodeError   a function of the user's own failed; `place` says where, and quotes nothing
├── RunError         a run folder is missing, in use, damaged or does not match
└── SiteError        a site failed; carries its name and the stage, never its data
"""


class WinnowError(Exception):
    """Base of all errors that a user can act upon."""


class ConfigError(WinnowError):
    """A setting is unknown, of the wrong type, or impossible."""


class DataError(WinnowError):
    """Data are missing, malformed or do not fit the request."""


class ModelError(WinnowError):
    """A model cannot be built, trained or profiled as asked."""


class OwnCodeError(ModelError):
    """A function of the user's own failed. The text may quote data; `place` (function, file, line, kind) does not."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.place = place


class RunError(WinnowError):
    """A run folder is missing, in use, damaged or does not match."""


class SiteError(WinnowError):
    """A site failed at some stage of its work."""

    def __init__(self, site: str, stage: str, reason: str) -> None:
        super().__init__(f"site {site} failed ({stage}): {reason}")
        self.site = site
        self.stage = stage
        self.reason = reason


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
