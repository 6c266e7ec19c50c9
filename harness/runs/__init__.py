"""The folder of a run: status, history, finding runs by name, how a command ends. May import workloads and below."""
