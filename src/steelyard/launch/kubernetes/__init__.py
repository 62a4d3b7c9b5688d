"""Campaigns on Kubernetes: what is created, what its answers mean, and how results come back."""
