"""The front side of specs: validation of what strangers write, studies, and what a study costs."""
