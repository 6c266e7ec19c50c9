"""The pages that a person reads: report, page, pictures, comparisons, the gate. May import rates and below."""
