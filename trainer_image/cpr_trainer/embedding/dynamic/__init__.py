"""Tables that give rows to ids as they come, and take them back (ADR 46)."""
