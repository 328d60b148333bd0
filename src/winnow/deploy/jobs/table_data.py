"""A site's declared table as data to train on: one client, encoded as the job states for all owners."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from winnow.analytics.tables.read_rows import read_site_table
from winnow.analytics.training_tables import training_data_set
from winnow.core import DataError
from winnow.data import ClientData, DataSettings
from winnow.deploy.jobs.party_data import SiteData, column_digest


def load_table_data(section: Mapping[str, Any], wanted: DataSettings, salt: str) -> SiteData:
    """The rows, by the units that the job's author asked all owners for."""
    stated = wanted.preprocessing
    if wanted.table is None or stated is None:
        raise DataError(f"{wanted.name} is a table here; submit the job with data.table = {wanted.name!r}")
    data = training_data_set({"": read_site_table(wanted.name, section)}, wanted, stated)
    rows = len(data)
    clients = ClientData(x=data.x, y=data.y, rows=np.arange(rows), offsets=np.array([0, rows]), classes=data.classes)
    names = [column.name for column in stated.columns]
    return SiteData(
        clients=clients,
        local_test=None,
        tokens=False,
        preprocessing=data.preprocessing,
        columns=column_digest(salt, names),
    )
