"""The shell scripts of a campaign, with or without a container."""
