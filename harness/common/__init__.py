"""Errors, files, paths, secrets, text, the terminal, the machine. Imports nothing of ours."""
