"""What a run means for privacy: who learns what, and which settings work against one another."""
