"""The `tiltyard` command: the registry's HTTP API from a terminal, and the whole stack on one machine.

Guarantees: with `--json`, stdout holds one JSON document and everything for people goes to stderr.
Does not: read the database; it is a client like any other."""
