"""What the rollout service tells Prometheus.

Guarantees: labels are closed sets.
Does not: count per run; a trace tells of one."""

from services.rollout.engine import Answer, Finish
from tiltyard.telemetry.metrics import Metrics

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Gauges:
    """Counters of requests and tokens, and the engine's meter."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._requests = metrics.counter("generation_requests", "Completion requests answered.", ("status",))
        self._seconds = metrics.histogram("generation_seconds", "Time to answer a completion request.")
        self._tokens = metrics.counter("generation_tokens", "Tokens read and generated.", ("kind",))
        self._choices = metrics.counter("generation_choices", "Completions by their end.", ("finish_reason",))
        self._rows = metrics.histogram(
            "generation_batch_rows", "Sequences in one forward pass.", buckets=ROWS
        )
        self._waits = metrics.histogram("generation_queue_seconds", "Wait before generation began.")
        self._loaded = metrics.gauge("policy_versions_loaded", "Policy versions in memory.")
        for finish in Finish:
            self._choices.labels(str(finish))
        self._read, self._made = self._tokens.labels("prompt"), self._tokens.labels("completion")

    @property
    def content_type(self) -> str:
        return self._metrics.content_type

    def answered(self, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def completed(self, answers: list[Answer]) -> None:
        """Count the tokens of one request."""
        self._read.inc(len(answers[0].prompt_token_ids))
        self._made.inc(sum(len(answer.token_ids) for answer in answers))
        for answer in answers:
            self._choices.labels(str(answer.finish)).inc()

    def admitted(self, waited: float) -> None:
        self._waits.observe(waited)

    def stepped(self, rows: int) -> None:
        self._rows.observe(rows)

    def exposition(self, loaded: int) -> bytes:
        """Everything in Prometheus' text format."""
        self._loaded.set(loaded)
        return self._metrics.exposition()
