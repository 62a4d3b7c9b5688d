"""Campaigns on Slurm: its commands, the states it reports, and checks of a site."""
