"""Energy and power sensors: one file per vendor, and the sampler process that reads them."""
