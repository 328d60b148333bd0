"""What the clients of a job are called."""

from collections.abc import Sequence

from winnow.core.untrusted_text import one_line
from winnow.deploy.jobs.ipc_messages import JobSite
from winnow.deploy.wire.messages import DataDescription


def client_names(members: Sequence[JobSite]) -> list[str]:
    """The site of each client, with its name there where the site tells it, or else a number where it has several.

    What a site calls its clients always stands behind its own name, so that none can pass for another site's.
    """
    return [name for member in members for name in _names_at(member.site, member.data)]


def _names_at(site: str, data: DataDescription) -> list[str]:
    clients = len(data.sizes)
    if len(data.client_names) == clients:
        return [f"{site}, {one_line(name)}" for name in data.client_names]
    return [site] if clients == 1 else [f"{site}, client {place}" for place in range(clients)]
