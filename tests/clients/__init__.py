"""Programs that real clients run against a daemon, each by `scripts/client_check.sh`."""
