"""An MMLU evaluation on the same engine. May import runner and below."""
