"""Structured events: a name and fields, one JSON object a line.

Guarantees: the standard library's logging alone, so whoever configures logging decides where lines go; the
ids of the current trace are added. A field that JSON cannot hold is written as its repr.
Does not: configure anything on import; `log_to` does."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any

from opentelemetry import trace


class EventLogger:
    """`log.info("runner.claimed", rollout_id=…)`: names are dotted, as spans' are; values go to fields."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: object) -> None:
        """What helps to find a fault."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """What happens in normal operation."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """What needs no one now, and someone if it repeats."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, *, exc_info: bool | BaseException = False, **fields: object) -> None:
        """What someone has to look at."""
        self._emit(logging.ERROR, event, fields, exc_info=exc_info)

    def _emit(
        self, level: int, event: str, fields: dict[str, object], *, exc_info: bool | BaseException = False
    ) -> None:
        self._logger.log(level, event, extra={"fields": fields}, exc_info=exc_info or None, stacklevel=3)


def event_logger(service: str) -> EventLogger:
    """The event logger of a service."""
    return EventLogger(logging.getLogger(f"tiltyard.{service}"))


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time, level, service, event, the fields, trace ids, and the traceback."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "event": record.getMessage(),
        }
        document |= {name: value for name, value in _fields(record).items() if name not in document}
        document |= _trace_ids()
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=repr, ensure_ascii=False)


def log_to(stream: IO[str] | None, *, service: str, level: str = "INFO") -> None:
    """Send every logger's records to a stream (stderr by default) as JSON lines, replacing what was set."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields = getattr(record, "fields", {})
    return fields if isinstance(fields, dict) else {}


def _trace_ids() -> dict[str, str]:
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }
