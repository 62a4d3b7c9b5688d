"""Records in, dataclasses out. Draws nothing, launches nothing."""
