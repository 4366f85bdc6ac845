"""llmd's own tests; a package, so that no suite's folder shadows the code it tests."""
