"""Devices: one file per family, each with a clock, deferred events and memory accounting."""
