"""Settings: every flag, MLPerf's fixed values as rows, and the plan that follows from both. May import core."""
