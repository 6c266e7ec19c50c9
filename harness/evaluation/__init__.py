"""Verdicts in addition to LoadGen's: the accuracy gate, compliance tests. May import results and below."""
