"""The search for the highest rate: probes, simulated tests, the quick estimate. May import results and below."""
