"""Turn records into dataclasses of results. Draws nothing, launches nothing."""
