"""The folder of a run: its status, the history, runs by name, how a command ends. May import workloads and below."""
