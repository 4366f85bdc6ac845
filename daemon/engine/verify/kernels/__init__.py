"""Whether this card computes what the kernels say: each family tried once in a child process."""
