"""Workers that start at once, since they are forked by a process that has imported all."""
