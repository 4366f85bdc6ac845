"""The self-driving plan: it searches again as the load changes, and gives an operator's orders."""
