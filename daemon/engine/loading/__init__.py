"""From a model's files to its modules and weights."""
