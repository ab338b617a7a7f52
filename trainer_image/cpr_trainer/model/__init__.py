"""The dense network: every trainer has a replica. No module here depends on embedding rows."""
