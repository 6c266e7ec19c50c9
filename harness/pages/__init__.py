"""report.html: its parts as data with every place computed, and the one file that they become. May import evaluation and below."""
