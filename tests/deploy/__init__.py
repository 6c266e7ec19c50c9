"""What runs on clusters: the manifest, the job scripts, the client image."""
