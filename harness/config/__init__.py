"""Settings: every flag, MLPerf's fixed values as rows, and the plan that comes of both. May import common."""
