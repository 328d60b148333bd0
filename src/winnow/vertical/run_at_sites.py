"""Split and transfer learning in a submitted program: every site is the owner that has its name."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from winnow.core import AnyEvent, Handler
from winnow.data import DataSettings
from winnow.experiment.execution_context import ExecutionContext
from winnow.experiment.run_workflow import PartyContext, WorkflowSpec
from winnow.vertical.keyed_rows import KeyedRows, OwnerColumns
from winnow.vertical.owners_data import rows_at_site
from winnow.vertical.split_site import VOLATILE, SplitSite
from winnow.vertical.split_workflow import SplitLearning

MakeSite: TypeAlias = Callable[[Callable[[int], KeyedRows], PartyContext], SplitSite]


def run_at_sites(
    context: ExecutionContext,
    workflow: SplitLearning,
    make_site: MakeSite,
    columns: Mapping[str, OwnerColumns],
    data: str,
    seed: int,
) -> list[AnyEvent]:
    """What happened; each site trains on its own data called `data`."""

    def at_a_site(party: PartyContext) -> tuple[Mapping[str, Handler[Any]], int]:
        rows, count = rows_at_site(columns, party, data)
        return make_site(rows, party).handlers(), count

    spec = WorkflowSpec(
        workflow=workflow,
        handlers={},
        data=DataSettings(name=data),
        seed=seed,
        volatile=VOLATILE,
        party_handlers=at_a_site,
    )
    return context.run_workflow(spec, lambda event: None)
