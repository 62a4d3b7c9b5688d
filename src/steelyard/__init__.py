"""steelyard: what an AI accelerator really does, measured so that the number can be believed."""
