"""Alembic's entry: it migrates over the connection that `Database.migrate` hands it."""

from alembic import context

from winnow.deploy.server.tables import TableBase

context.configure(connection=context.config.attributes["connection"], target_metadata=TableBase.metadata)
with context.begin_transaction():
    context.run_migrations()
