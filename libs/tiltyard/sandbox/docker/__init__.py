"""The docker backend: one container a box, held by the same tilt-init as a native one."""
