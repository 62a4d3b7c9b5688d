"""Running means with their CIs, and the stop rule. Uses only numpy and the standard library, so the worker can too."""
