"""The laboratory tries the daemon without users: simulations, plans, profiles, load, reports."""
