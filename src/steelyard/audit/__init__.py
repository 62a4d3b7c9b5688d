"""Audit of published tables and claims (untrusted files), with the same rules as steelyard's own records."""
