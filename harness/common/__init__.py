"""Errors, files, paths, secrets, text, the machine. Imports nothing of ours."""
