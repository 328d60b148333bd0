"""The tree of exceptions. Every message is one line fit for a user: what is wrong, where, and what to do.

WinnowError
├── ConfigError      a setting is unknown, of the wrong type, or impossible
├── DataError        data are missing, malformed or do not fit the request
├── ModelError       a model cannot be built, trained or profiled as asked
├── RunError         a run folder is missing, in use, damaged or does not match
└── SiteError        a site failed; carries its name and the stage, never its data

WinnowWarning is no error: the result stands, but something beside it did not go as it should.
"""


class WinnowError(Exception):
    """Base of all errors that a user can act upon."""


class WinnowWarning(UserWarning):
    """The result stands, but something beside it did not go as it should."""


class ConfigError(WinnowError):
    """A setting is unknown, of the wrong type, or impossible."""


class DataError(WinnowError):
    """Data are missing, malformed or do not fit the request."""


class ModelError(WinnowError):
    """A model cannot be built, trained or profiled as asked."""


class RunError(WinnowError):
    """A run folder is missing, in use, damaged or does not match."""


class SiteError(WinnowError):
    """A site failed at some stage of its work."""

    def __init__(self, site: str, stage: str, reason: str) -> None:
        super().__init__(f"site {site} failed ({stage}): {reason}")
        self.site = site
        self.stage = stage
        self.reason = reason
