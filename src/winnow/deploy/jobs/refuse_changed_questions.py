"""What a site was asked first under a heading: another question under it is not answered."""

from winnow.learn.party_signing_interface import PartyIdentities
from winnow.privacy.secagg.errors import ProtocolError

_PREFIX = b"first question\n"


class FirstQuestions:
    """Two answers that differ by one sample tell that sample, so that some questions must stay as they were. The site's
    agent remembers them, by a ballot on which nothing else is ever signed: a server can have a job's process restarted.
    """

    def __init__(self, identities: PartyIdentities, client: int) -> None:
        """`client` is one of the site's, under whose number they are remembered for all."""
        self._identities, self._client = identities, client
        self._known: dict[str, str] = {}

    def stands(self, heading: str, question: str) -> bool:
        """Whether this is the first question under the heading, or the same again."""
        if heading not in self._known:
            try:
                self._identities.sign_once(self._client, _PREFIX + question.encode(), _PREFIX + heading.encode())
            except ProtocolError:
                return False
            self._known[heading] = question
        return self._known[heading] == question
