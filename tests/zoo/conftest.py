"""Models of transformers without what they do not need: a suite of its own imports them anew."""

from daemon.engine.worker.torch_stubs import leave_out

leave_out()
