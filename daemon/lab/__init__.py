"""The laboratory: simulations, plans, profiles, load tests and reports, without users."""
