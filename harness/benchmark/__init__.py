"""The way of one run: plan, data, engine, where its load comes from, tests; its needs. May import report and below."""
