"""Finished runs as an MLPerf submission. May import reporting and below."""
