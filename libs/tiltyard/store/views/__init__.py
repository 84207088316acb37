"""Read-only queries behind the HTTP API and the console.

Guarantees: every query names its tenant; lists are read by keyset, so that a page costs the same wherever it
lies.
Does not: change a row."""
