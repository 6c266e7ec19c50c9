"""An MMLU evaluation on the same engine. May import report and below."""
