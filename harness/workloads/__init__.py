"""Requests: MLPerf's articles, a user's file, synthetic lengths, recorded arrivals. May import engines and below."""
