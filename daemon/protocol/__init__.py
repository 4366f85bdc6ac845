"""The contracts between the processes of one daemon: frozen, tagged structs, and nothing else."""
