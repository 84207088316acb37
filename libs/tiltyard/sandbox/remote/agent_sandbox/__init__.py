"""Kubernetes agent-sandbox: pods that a warm pool keeps ready in a cluster."""
