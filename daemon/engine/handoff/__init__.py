"""KV blocks from one worker's pool straight to another's (prefill to decode).

Two processes hold the ends of a Unix socketpair: one calls `connect_sender`, the other
`connect_receiver` (`daemon.engine.handoff.connect`). From then on the sender's transfers are copied
beside the steps of both, in one of two ways: its GPU writes into the receiver's pool (CUDA IPC), or
the bytes pass through slots of host memory that both map.
"""
