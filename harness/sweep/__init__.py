"""Settings, or servers, side by side: the file, the loop, rounds, the report. May import submission and below."""
