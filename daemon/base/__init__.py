"""What every process of llmd uses: logs, files, systemd's protocol, and close spellings."""
