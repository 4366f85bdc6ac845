"""The asyncio driver of the Core: real workers, real time."""
