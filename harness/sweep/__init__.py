"""A tuning sweep: its file, one experiment, the loop over all, the report. May import reporting and below."""
