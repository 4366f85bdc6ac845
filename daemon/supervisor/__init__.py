"""Child processes: started, watched, and ended by their own process ids."""
