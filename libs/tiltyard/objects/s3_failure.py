"""What a failure of boto3 means in the words of the port.

Guarantees: everything that boto3 raises for a request becomes an `ObjectError`.
Does not: retry; boto3 has retried what is transient before it raises."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
from urllib3.exceptions import HTTPError

from tiltyard.objects.store import ObjectError, ObjectMissing, ObjectStoreRefused, ObjectStoreUnavailable

MISSING = {"404", "NoSuchKey", "NotFound"}
TAKEN = {"412", "PreconditionFailed"}
REFUSED = range(400, 500)
TRANSIENT = {"RequestTimeout", "ConditionalRequestConflict", "OperationAborted", "429", "408"}
"""Codes of the 4xx class that another try can cure."""


class KeyTaken(ObjectError):
    """A conditional write found the key taken; the store decides whether by the same bytes."""


@contextmanager
def translated(store: str, key: str) -> Iterator[None]:
    """Raise the port's errors for what boto3 raises inside."""
    try:
        yield
    except ClientError as error:
        raise answered(store, key, error) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        cure = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the host a role"
        raise ObjectStoreRefused(f"{store}: {error}; {cure}") from error
    except (BotoCoreError, HTTPError, ConnectionError, TimeoutError) as error:
        raise _lost(store, key, error) from error


def answered(store: str, key: str, error: ClientError) -> ObjectError:
    """The port's error for an answer of the server."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in MISSING:
        return ObjectMissing(f"no object {key!r} in {store}")
    if code in TAKEN:
        return KeyTaken(f"object {key!r} in {store} exists")
    if status in REFUSED and code not in TRANSIENT:
        return ObjectStoreRefused(f"object {key!r} in {store}: {error}; check bucket, credentials and policy")
    return _lost(store, key, error)


def _lost(store: str, key: str, error: Exception) -> ObjectStoreUnavailable:
    return ObjectStoreUnavailable(f"object {key!r} in {store}: {error}; retried, try again later")
