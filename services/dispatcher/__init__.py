"""The dispatcher: the life of a rollout from planned to granted, and of a group from granted to settled."""
