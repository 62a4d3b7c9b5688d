"""Sensors of energy and power on the measured side: one file a vendor, and the process that reads them."""
