"""Workloads: one file a family. Each takes a batch and runs a step; none of them measures."""
