"""Container images: what one is, found before anything is queued."""
