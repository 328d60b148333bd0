"""TABLESAMPLE: owners take a part of their rows, by chance that everybody can repeat, before anything else."""

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused


def take_sample(tree: exp.Select) -> float | None:
    """The part of the rows that TABLESAMPLE asks for, which is taken out of the statement: owners sample rows first."""
    samples = list(tree.find_all(exp.TableSample))
    if not samples:
        return None
    if len(samples) > 1 or len(list(tree.find_all(exp.Table))) > 1:
        raise refused(samples[0], "TABLESAMPLE is supported where a statement names one table, once")
    (sample,) = samples
    method, percent = sample.args.get("method"), sample.args.get("percent")
    if method is None or method.name.upper() != "BERNOULLI" or not isinstance(percent, exp.Literal):
        raise refused(sample, "only TABLESAMPLE BERNOULLI(p PERCENT) is supported")
    part = float(percent.this) / 100
    if not 0 < part <= 1:
        raise refused(sample, f"TABLESAMPLE BERNOULLI({percent.this} PERCENT): write more than 0 and at most 100")
    sample.pop()
    return part
