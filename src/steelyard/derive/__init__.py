"""Raw observations of a run in, its record out: the same files always give the same record."""
