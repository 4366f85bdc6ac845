"""KV blocks from one worker's pool, or its host pool, straight to another's pool.

Two processes hold the ends of a Unix socketpair: one calls `connect_sender`, the other
`connect_receiver` (`transfer.connect`), and both `start` with a callback. From then on transfers
are copied beside the steps of both, in one of two ways: the sender's GPU writes into the receiver's
pool (CUDA IPC), or the bytes pass through slots of host memory that both map. A transfer goes whole
(`Sender.send`), or layer by layer while its step is computed (`Sender.begin_layers`,
`transfer.watch`). A checksum of every block is taken where it leaves and where it arrives
(`transfer.sums`). A worker's ends are all in its `WorkerLinks`: it joins them as they come, and
orders transfers with plans.
"""
