"""A run's results, typed: summary, metrics, history, telemetry, advice. May import profiling and below."""
