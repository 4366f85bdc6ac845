"""Steps in flight are as many as the product has: a GPU begins a step while another runs."""

from pathlib import Path

import msgspec
import pytest

from daemon.core.core import Core
from daemon.cost.profile import Profile
from daemon.lab.profiles.load import load_profile
from daemon.lab.simulator.journal import read_incident
from daemon.lab.simulator.rerun import configured as configured_again
from daemon.lab.simulator.rerun import rerun
from daemon.lab.simulator.run import Options, configured, run
from tests.lab.simulator.made import DEVICE, phases, prepared, profile, workload

SLOW = phases((0.05, 1e-6, 0.0))
REQUESTS = workload([0.0, 0.0, 0.1], [40, 50, 60], [12, 13, 14])
GPU = profile(SLOW, device=msgspec.structs.replace(DEVICE, name="made"))
CPU = profile(SLOW)


def most_in_flight(*profiles: Profile) -> list[int]:
    most = [0] * len(profiles)

    def look(core: Core) -> None:
        for index, instance in enumerate(core.instances):
            most[index] = max(most[index], len(instance.scheduler.in_flight))

    run(prepared(list(profiles), REQUESTS), Options(after_event=look))
    return most


def test_slow_steps_overlap_on_a_gpu_and_not_on_a_cpu() -> None:
    assert most_in_flight(GPU) == [2]
    assert most_in_flight(CPU) == [1]


def test_each_instance_goes_by_its_own_device() -> None:
    config = configured(prepared([GPU, CPU], REQUESTS))
    assert [one.ahead for one in config.instances] == [True, False]


def test_every_profile_that_comes_with_llmd_is_of_a_gpu() -> None:
    assert not load_profile("opt-13b@a100-80g").device.is_cpu
    assert CPU.device.is_cpu


@pytest.mark.parametrize(("first", "other"), [(GPU, CPU), (CPU, GPU)])
def test_a_journal_is_rerun_as_it_says_and_on_other_devices_as_they_do(
    first: Profile, other: Profile, tmp_path: Path
) -> None:
    run(prepared([first], REQUESTS), Options(journal=tmp_path))
    incident = read_incident(next(tmp_path.iterdir()))
    ahead = [one.ahead for one in incident.config.instances]
    assert ahead == [first is GPU]
    assert [one.ahead for one in configured_again(incident, "vllm", None).instances] == ahead
    assert [one.ahead for one in configured_again(incident, "", other).instances] != ahead
    assert rerun(incident).requests.output_tokens.tolist() == [12, 13, 14]
