"""Child processes: started, watched, ended by their own id."""
