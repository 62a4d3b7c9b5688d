"""SY1xx: settings that differ, or that were requested but not in effect."""
