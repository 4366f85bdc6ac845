"""Searches over simulations: capacity, sweeps, price, Pareto fronts (Vidur section 6)."""
