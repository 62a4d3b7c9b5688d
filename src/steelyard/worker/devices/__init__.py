"""Devices: one file a family, each with a clock, deferred events and a memory account."""
