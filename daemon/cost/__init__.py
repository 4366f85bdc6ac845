"""Step-time models that policies may ask: fitted, fallible, pure."""
