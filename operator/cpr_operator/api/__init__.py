"""The resource: `spec` is the user's request, `status` the state that the operator stores."""
