"""What a person types: a run, a report, a sweep, an MMLU evaluation, a log as JSON. May import all of these."""
