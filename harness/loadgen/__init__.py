"""LoadGen's tests: system under test, settings, logs, and what is watched meanwhile. May import workloads and below."""
