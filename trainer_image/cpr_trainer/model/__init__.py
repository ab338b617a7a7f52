"""The dense network, of which every trainer has a replica; no module here depends on embedding rows."""
