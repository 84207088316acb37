"""The native backend: Linux namespaces made by tilt-host, each held by a tilt-init."""
