"""winnow provision PROJECT"""

import os
from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra

PASSPHRASE_VARIABLE = "WINNOW_CA_PASSPHRASE"  # noqa: S105 - the name of a variable


@requires_deploy_extra
def provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="A project.toml.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The project's folder; default: a folder with the project's name beside the file."
        ),
    ] = None,
    renew: Annotated[str | None, typer.Option(metavar="NAME", help="Issue a new key and certificate for NAME.")] = None,
    revoke: Annotated[str | None, typer.Option(metavar="NAME", help="Revoke all certificates of NAME.")] = None,
    ask: Annotated[
        bool,
        typer.Option("--passphrase", help=f"Prompt for the passphrase of the CA key; default: ${PASSPHRASE_VARIABLE}."),
    ] = False,
) -> None:
    """Create a project's private CA and a start-up kit for every server, site and user that does not have one yet."""
    from winnow.cli.console import say
    from winnow.core import ConfigError
    from winnow.deploy.trust.peer_identity import utc_now
    from winnow.deploy.trust.project_file import read_project
    from winnow.deploy.trust.provisioning import is_provisioned, open_provisioner

    if renew and revoke:
        raise ConfigError("--renew and --revoke cannot be given together; revoke first, then renew")
    described = read_project(project)
    folder = out or project.parent / described.name
    is_new = not is_provisioned(folder)
    if is_new and (renew or revoke):
        raise ConfigError(f"{folder} contains no CA; create the kits first, or give their folder with --out")
    passphrase = ca_passphrase(folder, ask=ask, is_new=is_new)
    with open_provisioner(folder, described, passphrase, utc_now()) as provisioner:
        if is_new and passphrase is None:
            say(
                f"winnow: warning: the key in {provisioner.ca} is not encrypted; "
                f"set ${PASSPHRASE_VARIABLE} or use --passphrase to encrypt it"
            )
        lines = (
            provisioner.renew(renew) if renew else provisioner.revoke(revoke) if revoke else provisioner.issue_missing()
        )
        for line in lines:
            typer.echo(line)
        if not (renew or revoke):
            say(f"the CA's SHA-256 fingerprint: {provisioner.authority.fingerprint}")


def ca_passphrase(folder: Path, *, ask: bool, is_new: bool) -> bytes | None:
    """From the prompt or the environment; asked for without being told to where the key cannot be read otherwise."""
    import sys

    from winnow.deploy.trust.certificate_authority import is_encrypted

    given = os.environ.get(PASSPHRASE_VARIABLE)
    needed = not is_new and is_encrypted(folder / "ca")
    if ask or (needed and not given and sys.stdin.isatty()):
        given = typer.prompt("Passphrase of the CA's key", hide_input=True, confirmation_prompt=is_new, err=True)
    return given.encode() if given else None
