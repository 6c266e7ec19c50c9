"""What a person reads: report, index, pictures, comparisons. May import evaluation and below."""
