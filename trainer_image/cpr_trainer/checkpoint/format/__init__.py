"""The objects of saves in the store: keys, manifests, parts. No object is written twice with different content."""
