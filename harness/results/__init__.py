"""A run's results, typed: summary, metrics, verdicts, accuracy, telemetry, profile. May import loadgen and below."""
