"""The structs of answers and errors, and the 404s of addresses where nothing is."""
