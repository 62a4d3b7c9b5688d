"""Starting workers, here or at a site: plan, submit, follow, collect. Starts the measured side, imports none of it."""
