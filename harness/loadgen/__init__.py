"""LoadGen's tests: SUT, settings, logs, and what is recorded beside a test. May import runs and below."""
