"""The project's owner on the machine that holds the CA: approves applications, and makes the kits."""

from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from winnow.core import ConfigError
from winnow.deploy.trust.application import Application
from winnow.deploy.trust.peer_identity import utc_now
from winnow.deploy.trust.pending_kit import pack_kit
from winnow.deploy.trust.project_file import add_party, read_project
from winnow.deploy.trust.provisioning import is_provisioned, open_provisioner


@dataclass(frozen=True, kw_only=True)
class ProjectOwner:
    """`path` is the project file; the CA lies in `folder`."""

    path: Path
    folder: Path
    passphrase: bytes | None = field(repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def check(self) -> None:
        """Refuse at once what would fail at the first approval."""
        if not is_provisioned(self.folder):
            raise ConfigError(f"{self.folder} contains no CA; winnow provision {self.path} creates one")
        with open_provisioner(self.folder, read_project(self.path), self.passphrase, utc_now()):
            pass

    def approve(self, application: Application) -> bytes:
        """What the applicant may collect. The party is in the project file from then on, and its certificate among
        those that can be revoked.
        """
        with self._lock:
            project = add_party(self.path, application.party)
            with open_provisioner(self.folder, project, self.passphrase, utc_now()) as provisioner:
                return pack_kit(provisioner.issue_for(application))
