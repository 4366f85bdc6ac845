"""KV memory as a ledger: blocks, their owners, and which of them are available. Pure."""
