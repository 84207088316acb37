"""Sandboxes of this runner, lent over HTTP to outside harnesses and trainers."""
