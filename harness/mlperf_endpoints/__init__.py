"""MLPerf Endpoints: the official client at each point, the submission and its check. May import submission and below.

The rules are those of the official package `endpoints-submission-cli`, used as a library: none is written down here a
second time but for the steady state of section 4.4, which the package does not hold. The measurements are the official
client's, `inference-endpoint`, which runs as its own program.
"""
