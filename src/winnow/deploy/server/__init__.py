"""The server: its database, who leads, which jobs run, what sites are asked."""
