"""Starting workers: plan, launch, wait, collect. Imports none of the measured side; starts it as a process."""
