"""The publisher: one process of a job that publishes models from its store while it trains. ADR 48 has its rules."""
