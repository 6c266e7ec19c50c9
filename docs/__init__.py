"""What makes the pages of docs/: each module writes the page that it names."""
