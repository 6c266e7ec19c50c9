"""The results of a run: outcomes, metrics, verdicts, telemetry, cost, profile. May import loadgen and below."""
