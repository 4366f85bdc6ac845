"""The dashboard, driven against a real control socket."""
