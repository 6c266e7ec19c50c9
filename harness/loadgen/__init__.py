"""LoadGen's tests: system under test, settings, logs. May import workloads and below."""
