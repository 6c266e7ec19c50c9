"""The steps of one run: start the engine, find the rate, test, profile; what a run needs. May import report and below."""
