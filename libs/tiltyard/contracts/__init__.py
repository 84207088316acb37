"""What crosses a boundary: HTTP schemas, task specs, run configs, messages and stored documents.

Guarantees: frozen, versioned, light to import (pydantic and `core` alone); unknown keys are errors that name
the nearest known key."""
