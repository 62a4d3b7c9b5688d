"""Derive the record of a run from its raw observations: the same files always give the same record."""
