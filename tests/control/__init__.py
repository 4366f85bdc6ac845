"""The control socket: its server and its blocking client."""
