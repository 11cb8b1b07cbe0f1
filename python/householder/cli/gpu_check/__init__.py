"""``householder gpu-check``: ``command`` starts a ``worker`` for each check, and ``supervisor`` judges how it ended."""
