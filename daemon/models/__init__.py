"""Models: files and headers, shape and formats, which are served, and the embedded one."""
