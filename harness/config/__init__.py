"""Settings: every flag, MLPerf's fixed values as rows, the plan that comes of both. May import core."""
