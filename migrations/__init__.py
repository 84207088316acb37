"""The schema's history (alembic): expand, deploy, contract. Imported by nobody."""
