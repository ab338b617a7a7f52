"""What the commands of benches ask the processes that they start, and are told."""
