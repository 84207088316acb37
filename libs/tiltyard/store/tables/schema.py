"""What all tables share: how constraints are named, which SQL type a Python type is, the database's clock."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, DateTime, Interval, MetaData, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
NOW = text("clock_timestamp()")


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMES)
    type_annotation_map = {  # noqa: RUF012 - read by SQLAlchemy
        str: Text,
        datetime: DateTime(timezone=True),
        timedelta: Interval,
        dict[str, Any]: JSONB,
        int: BigInteger,
    }


def one_of(column: str, *values: str) -> CheckConstraint:
    """A check, named as its column, that holds it to these values."""
    listed = ", ".join(f"'{v}'" for v in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)
