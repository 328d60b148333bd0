"""Trees over rows at several sites, by every method: owners take the question, and the model is the simulation's."""

from pathlib import Path
from typing import get_args

import pytest
import tomli_w
from table_world import TableWorld, running

from tree_rows import DECLARATION, rows_of
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.question import QueryTerms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.tables.parse_table_section import parse_table
from winnow.analytics.tables.read_rows import read_rows
from winnow.analytics.trees.trees_question import TreesQuestion

SITES = ("north", "south", "west")
COLUMNS = {
    name: {key: value for key, value in column.items() if key in ("level", "bounds", "values", "type") and value}
    for name, column in DECLARATION.model_dump(mode="json")["columns"].items()
    if name in ("x", "heavy", "kind", "yes")
}
RULE = """
[[queries]]
people = ["ana"]
tables = ["t"]
allow = ["trees", "owner-trees"]
"""
METHODS = get_args(TreesQuestion.model_fields["method"].annotation)


@pytest.mark.slow(part="deploy")
def test_every_method_gives_the_simulations_model_between_processes(tmp_path: Path) -> None:
    world, tables, terms = TableWorld(tmp_path, SITES), {}, {}
    section = {"file": "t.csv", "columns": COLUMNS}
    for number, site in enumerate(SITES):
        world.configure(site, "", tomli_w.dumps({"tables": {"t": section}}), RULE)
        rows_of(150 + 40 * number, number)[list(COLUMNS)].to_csv(world.kit(site) / "t.csv", index=False)
        declaration, source = parse_table(section, "table t")
        tables[site] = read_rows(source.absolute(world.kit(site)), declaration)
        terms[site] = QueryTerms(declaration=tables[site].declaration, allow=PERMISSIONS)
    with running(world) as connection:
        for method in METHODS:
            asked = {"kind": "trees", "table": "t", "target": "yes", "rounds": 3, "depth": 3, "method": method}
            question = read_question(asked)
            assert connection.ask(question, timeout=240).values == ask_owners(question, tables, terms)
    assert {*METHODS} == {"histogram", "bagging", "cyclic", "forest"}
