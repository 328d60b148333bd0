"""Models fitted to tables of several owners from sums over their rows: no row leaves, and no owner's own value."""
