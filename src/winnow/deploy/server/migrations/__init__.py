"""How the tables came to be, step by step; alembic runs what a database lacks."""
