"""Pure decisions of the platform: no I/O, no clock, no randomness; `now`, seeds and ids are arguments."""
