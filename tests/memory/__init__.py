"""The ledger of KV blocks, and the formula that sizes it."""
