"""Finished runs as an MLPerf submission. May import report and below."""
