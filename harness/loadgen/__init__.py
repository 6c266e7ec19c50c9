"""LoadGen's tests: system under test, settings, logs, target rates. May import workloads and below."""
