"""Rows of figures and their settings: what the rules on pairs, tables and claims share."""
