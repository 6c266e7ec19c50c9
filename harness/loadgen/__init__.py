"""LoadGen's tests, and the folder of a run: SUT, settings, logs, what is watched. May import workloads and below."""
