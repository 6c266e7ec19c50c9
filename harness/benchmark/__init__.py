"""The way of one run: plan, data, engine, rate, tests, report. May import reporting and below."""
