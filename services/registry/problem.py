"""What the registry answers its expected exceptions with.

Does not: shape the answer; `tiltyard.web.problem` does."""

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tiltyard.objects import ObjectError, ObjectMissing, ObjectStoreUnavailable
from tiltyard.store.dead_letters import NotRedrivable
from tiltyard.store.fleet import NoSuchNode, Unplaceable
from tiltyard.store.idempotency import OtherRequest
from tiltyard.store.policies import NoSuchPolicy
from tiltyard.store.runs import HasEnded, NameTaken, NoSuchRun, NothingToRun
from tiltyard.store.tenants import QueueFull
from tiltyard.web.problem import Refusal

RETRY_SECONDS = "2"
QUEUE_SECONDS = "15"
"""When to ask again for a run that a full queue refused."""
EXPECTED = (
    OtherRequest,
    NameTaken,
    NoSuchRun,
    NothingToRun,
    NoSuchPolicy,
    HasEnded,
    NoSuchNode,
    NotRedrivable,
    QueueFull,
    Unplaceable,
    ObjectError,
    DBAPIError,
    PoolTimeout,
)


def refuse(error: Exception) -> Refusal | None:
    """The answer to one of `EXPECTED`; None for a fault of ours."""
    match error:
        case OtherRequest():
            return Refusal(
                409, "this Idempotency-Key was used for another request; take a new key for new content"
            )
        case NameTaken() | HasEnded() | NotRedrivable():
            return Refusal(409, str(error))
        case NoSuchRun() | NoSuchNode() | ObjectMissing():
            return Refusal(404, str(error))
        case NothingToRun() | NoSuchPolicy() | Unplaceable():
            return Refusal(422, str(error))
        case QueueFull():
            return Refusal(429, str(error), headers={"Retry-After": QUEUE_SECONDS})
        case _:
            return _unavailable(error)


def _unavailable(error: Exception) -> Refusal | None:
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    ):
        detail = "the database does not answer; nothing was changed, try again"
        return Refusal(503, detail, headers={"Retry-After": RETRY_SECONDS})
    if isinstance(error, ObjectStoreUnavailable):
        detail = "the object store does not answer; try again"
        return Refusal(503, detail, headers={"Retry-After": RETRY_SECONDS})
    if isinstance(error, ObjectError):
        return Refusal(502, "the object store refused; see the registry's log")
    return None
