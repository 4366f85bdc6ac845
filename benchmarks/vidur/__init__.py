"""Step times and capacities of this simulator beside those of Vidur's own, of the same tables."""
