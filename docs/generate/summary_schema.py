"""`python -m docs.generate.summary_schema` writes the JSON schema of summary.json (harness.results.summary_schema)."""

from harness.results.summary_schema import SCHEMA_FILE, schema

if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema())
