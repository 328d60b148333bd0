"""Before a job trains on a table: the owners are asked for the units that all of them encode their rows by."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from winnow.analytics.training_tables import common_preprocessing, units_question
from winnow.core import ConfigError, WinnowError
from winnow.deploy.client.bundle import JobDescription

if TYPE_CHECKING:
    from winnow.deploy.client.connection import Connection


def with_common_units(
    described: JobDescription, connection: "Connection", owners: Sequence[str], on_line: Callable[[str], object]
) -> JobDescription:
    """The job with its preprocessing stated: by its author, or else by the owners' statistics."""
    data = described.data
    if data.table is None or data.preprocessing is not None:
        return described
    try:
        answer = connection.ask(units_question(data), owners=owners)
    except WinnowError as error:
        raise ConfigError(
            f"the units of table '{data.table}' cannot be asked for: {error}; or state data.preprocessing"
        ) from error
    stated = common_preprocessing(answer.values, data)
    on_line(f"common units of {len(stated.columns)} columns from {len(answer.owners)} owners")
    section = {**described.table["data"], "preprocessing": stated.model_dump(mode="json", exclude_none=True)}
    return replace(
        described,
        table={**described.table, "data": section},
        data=data.model_copy(update={"preprocessing": stated, "features": None}),
    )
