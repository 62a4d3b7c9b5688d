"""Sentences about a table, as claims."""
