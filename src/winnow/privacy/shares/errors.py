"""What can go wrong between parties that compute in shares."""

from winnow.core import WinnowError


class SharesError(WinnowError):
    """A party's letter is not what it should be, or shares do not fit together, in one line."""

    def __init__(self, line: str, party: int | None = None) -> None:
        """`party` is the one whose letter it was, if it was one's."""
        super().__init__(line)
        self.party = party
