"""Running means and their intervals, and when to stop: numpy and standard library, for both sides alike."""
