"""SY3xx: speed-ups and efficiencies over the number of devices."""
