"""An MMLU evaluation on the same engine. May import reporting and below."""
