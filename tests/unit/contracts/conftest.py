"""Hypothesis never fails a law for being slow."""

from hypothesis import settings

settings.register_profile("laws", deadline=None)
settings.load_profile("laws")
