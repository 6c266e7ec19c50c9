"""MMLU on the same engine: settings, questions, prompts, asking, scores, report."""
