"""Checks of this node: what it is, and what would slow or stop a run on it."""
