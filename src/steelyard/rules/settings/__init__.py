"""SY1xx: settings that differ, or that were asked for and not in effect."""
