"""The architecture as tests: the tree, sizes, banned calls, versions."""
