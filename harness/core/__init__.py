"""Errors, files, secrets, processes, the machine; what a person types and sees. Imports nothing of ours."""
