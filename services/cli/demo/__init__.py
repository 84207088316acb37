"""`tiltyard demo`: the whole loop on one machine, from submitted tasks to a better policy."""
