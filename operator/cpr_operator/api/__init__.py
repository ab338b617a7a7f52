"""The resource: `spec` is what a user asks for, `status` all that the operator remembers."""
