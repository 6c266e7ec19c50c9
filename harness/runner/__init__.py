"""The steps of one run: start the engine, find the rate, test, profile. May import report and below."""
