"""The report of a study, a selection or a run."""
