"""Searches over simulations: capacity, sweeps, price, Pareto fronts, plans (Vidur section 6)."""
