"""The filters that a site forces on jobs, as its policy names them."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

import winnow.experiment.schema  # noqa: F401 - brings all filters that there are
from winnow.core import ConfigError, Filter, Settings
from winnow.learn.filters import Filtering, site_filters, unforeseeable


class _Forced(Settings):
    filters: tuple[Filtering, ...]


def forced_filters(tables: Sequence[Mapping[str, Any]]) -> tuple[Filter[Any], ...]:
    """The sites' side of these filters, with randomness that nobody can foresee."""
    try:
        return site_filters(_Forced.model_validate({"filters": list(tables)}).filters, unforeseeable)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"the site's policy forces a filter that cannot be: {where}: {first['msg']}") from error
