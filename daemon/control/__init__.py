"""The control socket: immutable snapshots for llmd-top and llmd ctl."""
