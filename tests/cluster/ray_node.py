"""One node of a cluster on loopback: `python -m tests.cluster.ray_node NAME ADDRESS FOLDER`.

`ray start` listens on all addresses of a machine, or refuses further nodes. This does neither,
where `LOOPBACK_ONLY` is in the environment. The head is the first; it runs until it is killed.
"""

import signal
import sys

from daemon.wire.parent import die_with_parent

STORE_BYTES = 200_000_000
LOOPBACK_ONLY = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}
"""Ray's own switch: no address but 127.0.0.1 is used. Nothing is reported to anybody either, and
actors have the priority of other processes.
"""
UP = "the node is up"


def main(name: str, address: str, folder: str, is_head: bool) -> None:
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    die_with_parent()

    parameters = RayParams(
        node_name=name,
        node_ip_address="127.0.0.1",
        num_cpus=1,
        num_gpus=0,
        object_store_memory=STORE_BYTES,
        include_dashboard=False,
        include_log_monitor=True,
        node_manager_port=0,
        dashboard_agent_listen_port=None,
        min_worker_port=0,
        max_worker_port=0,
    )
    if is_head:
        parameters.update(gcs_server_port=int(address.rpartition(":")[2]), temp_dir=folder)
    else:
        parameters.update(gcs_address=address)
    Node(parameters, head=is_head, shutdown_at_exit=False, spawn_reaper=True)
    print(UP, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:4], is_head=sys.argv[4:] == ["head"])
