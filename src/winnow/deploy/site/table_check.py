"""What `winnow site KIT --check` says of tables and of the rules for questions."""

from collections.abc import Iterator

from winnow.deploy.site.config import SiteConfig
from winnow.deploy.site.site_table import SiteTable
from winnow.deploy.trust.policy_rules import ANY, matches
from winnow.deploy.trust.site_policy import SitePolicy


def described_site_table(table: SiteTable) -> str:
    """Read here and not by the worker's way: the site's own operator may see which columns there are."""
    from winnow.analytics.tables.describe_table import described_table  # noqa: PLC0415 - pyarrow is an extra
    from winnow.analytics.tables.parse_table_section import parse_table  # noqa: PLC0415
    from winnow.analytics.tables.read_rows import read_rows  # noqa: PLC0415

    declaration, source = parse_table(table.section, "site.toml:")
    return described_table(read_rows(source, declaration))


def query_rule_lines(policy: SitePolicy, config: SiteConfig) -> Iterator[tuple[bool, str]]:
    """Whether each rule has a table and each table a rule, and what it says."""
    for rule in policy.queries:
        who = ", ".join(each for each in (*rule.people, *rule.organisations, *rule.roles) if each != ANY) or "everybody"
        if unknown := [name for name in rule.tables if name != ANY and name not in config.tables]:
            yield False, f"a [[queries]] rule names table {unknown[0]!r}, which site.toml does not have"
            continue
        tables = "any table" if ANY in rule.tables else ", ".join(rule.tables)
        noise = "" if rule.noise is None else f", with noise up to ε = {rule.noise.epsilon:g}"
        yield True, f"{who} may ask {tables} for {', '.join(rule.allow)}: at least {rule.minimum} rows a number{noise}"
    for name in config.tables:
        if not any(matches(rule.tables, name) for rule in policy.queries):
            yield False, f"no [[queries]] rule allows anybody to ask about table {name!r}"
