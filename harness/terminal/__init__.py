"""What a person types and sees: the frame of every command, its help, progress. May import common."""
