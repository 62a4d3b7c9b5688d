"""Campaigns on Kubernetes: the objects to create, what the answers mean, and how results come back."""
