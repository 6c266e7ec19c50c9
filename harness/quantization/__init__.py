"""Makes quantized checkpoints, and says what one was made of. May import rates and below."""
