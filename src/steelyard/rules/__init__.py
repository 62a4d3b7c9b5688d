"""Rules that check runs, pairs of rows, tables and claims."""
