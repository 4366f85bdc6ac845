"""The policies, by the name that configuration and clients use."""

from daemon.scheduler.policies.base import Policy
from daemon.scheduler.policies.distserve import DistServe
from daemon.scheduler.policies.gittins import Gittins
from daemon.scheduler.policies.mlfq import Mlfq, MlfqQ1
from daemon.scheduler.policies.orca import Orca
from daemon.scheduler.policies.packed import PeakPacked
from daemon.scheduler.policies.priority import Priority
from daemon.scheduler.policies.prompt_order import PromptLjf, PromptSjf
from daemon.scheduler.policies.sarathi import Sarathi
from daemon.scheduler.policies.sjf import Sjf
from daemon.scheduler.policies.speculative import Speculative, SpeculativeQueues
from daemon.scheduler.policies.splitwise import Splitwise
from daemon.scheduler.policies.srtf import Srtf
from daemon.scheduler.policies.static import Static
from daemon.scheduler.policies.synced import Synced, SyncedD, SyncedSd, SyncedSdo
from daemon.scheduler.policies.vllm import Vllm

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Vllm,
        Sarathi,
        Splitwise,
        DistServe,
        Orca,
        Static,
        Priority,
        PromptSjf,
        PromptLjf,
        Sjf,
        Srtf,
        Mlfq,
        MlfqQ1,
        Speculative,
        SpeculativeQueues,
        Gittins,
        SyncedD,
        SyncedSd,
        SyncedSdo,
        Synced,
        PeakPacked,
    )
}

FORMER_NAMES = {"synced-nested": "synced"}
"""Names that configurations of before may have, and what these policies are called now."""


def meanings() -> list[str]:
    """A line for each policy: its name, and what it means."""
    width = max(map(len, POLICIES))
    return [f"{name:<{width}}  {policy.meaning}" for name, policy in POLICIES.items()]
