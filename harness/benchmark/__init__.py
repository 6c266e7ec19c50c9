"""The way of one run: plan, data, engine, rate, tests, report; what it needs. May import report and below."""
