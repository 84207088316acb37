"""E2B: Firecracker machines at e2b.dev, or at whoever speaks its API."""
