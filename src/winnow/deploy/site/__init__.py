"""A site's agent: it pulls work, enforces its own policy, and runs jobs in processes of their own."""
