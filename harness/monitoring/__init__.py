"""What is watched while an engine starts and a test runs. May import engines and below."""
