"""Container images, inspected before anything is queued."""
