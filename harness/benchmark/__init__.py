"""The way of one run: plan, data, engine, its load, tests; what it needs. May import report and below."""
