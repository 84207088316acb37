"""Programs that run inside sandboxes: read as data and sent in, never imported by the evaluator but for
`values`."""
