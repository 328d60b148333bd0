"""The server: its database, the election of the leader, the scheduling of jobs, the tasks of sites."""
