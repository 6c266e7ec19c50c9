"""What a run measured: outcomes, metrics, verdicts, telemetry, cost, profile. May import loadgen and below."""
