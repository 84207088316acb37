"""`tiltyard bench`: figures, all of one kind in one run, so that ratios can be trusted."""
