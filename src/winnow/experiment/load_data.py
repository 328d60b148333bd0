"""The data of an experiment, wherever they are."""

from pathlib import Path

from winnow.analytics.query_extra import require_query_extra
from winnow.data import DataSet, DataSettings, check_source, load
from winnow.data.on_demand import OnDemand


def load_data(settings: DataSettings, directory: Path | None = None) -> DataSet | OnDemand:
    """Files and known sets, or a declared table that several owners hold."""
    if settings.table is None:
        return load(settings, directory)
    require_query_extra()
    from winnow.analytics.training_tables import load_training_table  # noqa: PLC0415 - pyarrow is an extra

    check_source(settings)
    return load_training_table(settings)
