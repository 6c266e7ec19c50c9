"""The search for the highest rate: trials and probes, the law, the quick estimate. May import results and below."""
