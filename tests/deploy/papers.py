"""Projects whose certificates are real, for tests: a server, two sites, and a person of each role."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from cryptography import x509

from winnow.deploy.trust.audit_chain import AuditLogOwner
from winnow.deploy.trust.audit_log import AuditStore, verify_audit_log
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Role, utc_now
from winnow.deploy.trust.project_file import Project
from winnow.deploy.trust.provisioning import open_provisioner

PARTIES: Mapping[str, Any] = {
    "servers": [{"name": "server-1", "organisation": "Institute", "hosts": ["localhost", "127.0.0.1"]}],
    "sites": [
        {"name": "plant-a", "organisation": "Plant A"},
        {"name": "plant-b", "organisation": "Plant B"},
    ],
    "people": [{"name": f"the-{role}", "organisation": "Institute", "role": role} for role in get_args(Role)],
}


def a_project(name: str = "turbines", **changes: Any) -> Project:
    return Project.model_validate({"name": name, **PARTIES, **changes})


def provision(folder: Path, project: Project | None = None, now: datetime | None = None) -> list[str]:
    """Make all kits; what was said."""
    with open_provisioner(folder, project or a_project(), None, now or utc_now()) as workshop:
        return list(workshop.issue_missing())


def kit_of(folder: Path, name: str) -> Kit:
    return Kit.load(folder / "kits" / name)


def audit_problems(
    store: AuditStore, authority: x509.Certificate | None = None, owner: AuditLogOwner | None = None
) -> list[str]:
    """All that is wrong with an audit log."""
    return verify_audit_log(store, authority, owner or AuditLogOwner()).problems
