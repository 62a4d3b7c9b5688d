"""The report of a study, a selection or a run: which sections it has, and what is in them."""
