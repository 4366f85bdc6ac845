"""The dashboard's screens: the overview, the tree, the KV map, and one each for what is opened."""
