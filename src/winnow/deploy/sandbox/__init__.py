"""Isolates a job's process: limits for every job, and for a job's own code no network and few files but its data."""
