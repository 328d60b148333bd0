"""A digest of rows that owners compare where all of them should have the same."""

from hashlib import sha256

from winnow.analytics.tables.owner_table import OwnerTable


def row_digest(table: OwnerTable) -> str:
    """SHA-256 of the rows, whatever order they and their columns are in."""
    names = sorted(table.rows.column_names)
    rows = table.rows.select(names).sort_by([(name, "ascending") for name in names])
    digest = sha256()
    for name in names:
        digest.update(f"{name}\n{rows.column(name).to_pylist()!r}\n".encode())
    return digest.hexdigest()
