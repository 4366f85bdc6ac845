"""Comparisons before anything is served: a model's logits, and a card's kernels."""
