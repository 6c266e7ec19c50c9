"""Verdicts beside LoadGen's: the accuracy gate, compliance tests. May import results and below."""
