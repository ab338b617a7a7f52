"""What lies in the store: keys, manifests, parts and their bytes. No object is written twice with other content."""
