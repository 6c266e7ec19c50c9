"""Finished runs, evaluations and sweeps to MLflow. May import all of these; only the commands import it."""
