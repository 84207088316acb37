"""The edge of a service that answers HTTP: who may come in, what a body is, how an error looks."""
