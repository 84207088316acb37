"""The only SQL: `tables` and one module per aggregate; every function is synchronous, on a `Session`.

Guarantees: nothing here commits; the edge that opened the session does."""
