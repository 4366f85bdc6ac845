"""A model is tried before it is served: what will serve it against transformers' own forward."""
