"""A run's own folder: its life, its records, how it ends. May import config and below."""
