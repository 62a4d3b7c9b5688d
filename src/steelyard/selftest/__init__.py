"""Proof of the arithmetic on simulated accelerators: every formula against a truth known beforehand."""
