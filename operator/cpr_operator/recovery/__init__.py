"""Pure decisions over lost members of a job, each with its reason."""
