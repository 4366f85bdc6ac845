"""torch's compiler stays out of the process of these tests, as it does out of workers."""

from daemon.engine.worker.torch_stubs import leave_out

leave_out()
