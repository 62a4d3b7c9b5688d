"""Reads and checks what users write: studies, site files, recipes, schemes and their settings."""
