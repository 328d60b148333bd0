"""The walls around a job's process: limits, and for code of a job's own no network and sight of little but its data."""
