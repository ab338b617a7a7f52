"""What to do when members of a job are lost: pure decisions, each with its reason."""
