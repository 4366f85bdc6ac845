"""The dashboard's screens: the overview, the tree, the KV map, an instance, a sequence."""
