"""What everyone sees: spans, events and metrics.

Guarantees: `propagation`, `events`, `span` and `waterfall` load no SDK, so any service module may use them.
Does not: start anything on import; `setup.setup`, called by a `__main__` alone, does."""
