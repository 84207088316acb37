"""Fakes, conformance suites and real servers for tests.

Guarantees: each fake passes the suite that the real thing passes.
Does not: belong in a product; only tests import it."""
