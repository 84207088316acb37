"""One module per kind of verifier component."""
