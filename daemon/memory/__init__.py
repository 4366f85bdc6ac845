"""KV memory as a ledger: blocks, who holds them, and which may be taken. Pure."""
