"""The `llmd` command: a file for each of its subcommands."""
