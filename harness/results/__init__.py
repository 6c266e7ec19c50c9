"""What a run comes to, typed: summary, metrics, history, telemetry, advice. May import profiling and below."""
