"""The watcher of roles, and the roles that it chooses."""
