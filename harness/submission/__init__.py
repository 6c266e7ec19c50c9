"""Finished runs as an MLPerf submission. May import runner and below."""
