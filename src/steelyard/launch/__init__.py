"""Start workers on this machine or at a site: plan, submit, follow, collect. Imports nothing of the measured side."""
