"""How long answers will be. Pure: randomness is an argument; what only a simulation knows is named so."""
