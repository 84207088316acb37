"""The image store: unpacked read-only roots, each named by the digest of its content."""
