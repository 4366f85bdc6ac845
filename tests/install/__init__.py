"""llmd as a service: its unit, and what `make install` puts where."""
