"""Measure a person's own program without a change to it."""
