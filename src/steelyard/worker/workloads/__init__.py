"""Workloads: one file per family. Each takes a batch and runs a step; timing is done elsewhere."""
