"""The load of a test: trials, probes, the search for the highest rate. May import results and below."""
