"""Benchmark AI accelerators with numbers you can trust."""
