"""winnow apply NAME"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.federation.require_deploy_extra import requires_deploy_extra


@requires_deploy_extra
def apply(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Your name, or the site's.")],
    organisation: Annotated[str | None, typer.Option(metavar="TEXT", help="The organisation you belong to.")] = None,
    role: Annotated[
        str | None, typer.Option(metavar="ROLE", help="For a person: admin, lead, member or org-admin.")
    ] = None,
    site: Annotated[bool, typer.Option("--site", help="For a site.")] = False,
    contact: Annotated[str, typer.Option(metavar="TEXT", help="How the project's owner reaches you.")] = "",
    collected: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What you collected: makes the kit complete.")
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(metavar="SHA256", help="The CA's, as the project's owner told you.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The kit's folder; default: NAME.")] = None,
) -> None:
    """Apply for a kit: make the keys on this machine, and a file to hand in at the project's pages.

    Once the project's owner has approved it, the pages hand out the rest of the kit, once; --collected puts it beside
    the keys. The keys never leave this machine.
    """
    folder = out or Path(name)
    if collected is not None:
        _complete(folder, collected, fingerprint)
    else:
        _begin(folder, name, organisation, role, contact, site=site)


def _begin(folder: Path, name: str, organisation: str | None, role: str | None, contact: str, *, site: bool) -> None:
    from winnow.cli.console import say
    from winnow.core import ConfigError
    from winnow.deploy.trust.application import APPLICATION_FILE, applying_party
    from winnow.deploy.trust.pending_kit import begin_kit

    if organisation is None or site == (role is not None):
        raise ConfigError("say who applies: --organisation TEXT, and either --role ROLE or --site")
    party = applying_party(name, organisation, role or "")
    fingerprint = begin_kit(folder, party, contact)
    typer.echo(f"made {folder / APPLICATION_FILE}: hand it in at the project's pages")
    typer.echo(f"fingerprint of your key: {fingerprint}")
    say("tell the fingerprint to the project's owner by telephone; your keys stay in this folder")


def _complete(folder: Path, collected: Path, fingerprint: str | None) -> None:
    from winnow.cli.console import say
    from winnow.core import ConfigError
    from winnow.deploy.trust.pending_kit import complete_kit

    if not collected.is_file():
        raise ConfigError(f"{collected}: no such file")
    kit, found = complete_kit(folder, collected, fingerprint)
    typer.echo(f"made {folder}: the kit of {kit.peer}")
    if fingerprint is None:
        say(f"compare the CA's SHA-256 fingerprint with the one that you were told: {found}")
