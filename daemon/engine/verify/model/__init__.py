"""The trial of a model before it is served, against transformers' own forward."""
