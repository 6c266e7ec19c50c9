"""report.html: its parts as data with their places, and the one file they become. May import evaluation and below."""
