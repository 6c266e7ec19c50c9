"""Requests: MLPerf's articles, a user's file, synthetic lengths. May import monitoring and below."""
