"""What a person reads: report, index, pictures, comparisons. May import pages and below."""
