"""Real servers for tests: Postgres, RabbitMQ, and SeaweedFS for S3, each in a folder of its own.

Guarantees: random ports on 127.0.0.1 (Postgres: a socket), no secret from outside, and nothing left running
at the end, or the end fails.
Does not: keep data; the folder belongs to the caller, who may delete it."""

from tiltyard.testing.servers.postgres import Postgres, start_postgres
from tiltyard.testing.servers.rabbitmq import RabbitMQ, rabbitmq_installed, start_rabbitmq
from tiltyard.testing.servers.s3 import S3Server, start_s3

__all__ = [
    "Postgres",
    "RabbitMQ",
    "S3Server",
    "rabbitmq_installed",
    "start_postgres",
    "start_rabbitmq",
    "start_s3",
]
