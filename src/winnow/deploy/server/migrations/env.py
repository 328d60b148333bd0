"""Alembic's entry: it migrates over the connection that `Database.migrate` hands it."""

from alembic import context

from winnow.deploy.server.tables import Table

context.configure(connection=context.config.attributes["connection"], target_metadata=Table.metadata)
with context.begin_transaction():
    context.run_migrations()
