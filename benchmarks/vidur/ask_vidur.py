"""Vidur's simulator, asked line by line; runs in a virtual environment of its own.

usage: ask_vidur.py FOLDER < QUESTIONS. Each question and each reply is a line of JSON. The first
question is the job: model, device, tp, pp, chunk_tokens, max_running, num_blocks, max_len,
launch_ms and batching. Further ones are {"batches": [[[tokens, before], ...], ...]}, answered by
the seconds of each on one stage, or {"requests": [[arrival_s, prompt, answer], ...]}, answered by
the P99 of the scheduling delay and the time of the last answer.

The tables are read from FOLDER (`tables.py` writes them) instead of being fetched. One forest of
one shape is fitted to each instead of the best of 27 by cross-validation, which takes an hour.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np

import vidur.execution_time_predictor.sklearn_execution_time_predictor as fitted
import vidur.scheduler.global_scheduler.base_global_scheduler as global_scheduler
import vidur.simulator as simulator
from vidur.config.config import (
    ClusterConfig,
    FixedRequestLengthGeneratorConfig,
    MetricsConfig,
    RandomForrestExecutionTimePredictorConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    SyntheticRequestGeneratorConfig,
)
from vidur.entities import Batch, Replica, Request
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry

_CONTEXT_STEP = 64


class _Same:
    """A registry that has one object alone."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def get(self, *_: Any, **__: Any) -> Any:
        """It."""
        return self._made


class _Restarted(Request):
    """A request that begins anew where it is preempted; the package leaves its count of a stage."""

    def restart(self) -> None:
        """Compute all its tokens again."""
        super().restart()
        self._num_stage_processed_tokens = 0
        self._is_prefill_stage_complete = False


class _Requests:
    """A generator of given requests."""

    def __init__(self, rows: list[list[float]]) -> None:
        self._rows = rows

    def generate(self) -> list[Any]:
        """Them, as Vidur's."""
        return [_Restarted(at, int(prompt), int(answer)) for at, prompt, answer in self._rows]


class _Vidur:
    """Its simulator of one replica."""

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        self._job = job
        fitted.snapshot_download = lambda **asked: str(folder / asked["repo_id"])
        self._predictor = _Same(
            ExecutionTimePredictorRegistry.get(
                self._config.execution_time_predictor_config.get_type(),
                predictor_config=self._config.execution_time_predictor_config,
                replica_config=self._config.cluster_config.replica_config,
            )
        )
        global_scheduler.ExecutionTimePredictorRegistry = self._predictor

    @property
    def _config(self) -> Any:
        job = self._job
        return SimulationConfig(
            log_level="error",
            cluster_config=ClusterConfig(
                num_replicas=1,
                replica_config=ReplicaConfig(
                    model_name=job["model"],
                    device=job["device"],
                    network_device=f"{job['device']}_dgx",
                    tensor_parallel_size=job["tp"],
                    num_pipeline_stages=job["pp"],
                    enable_sequence_pipeline_parallel=False,
                ),
                replica_scheduler_config=SarathiSchedulerConfig(
                    num_blocks=job["num_blocks"],
                    batch_size_cap=job["max_running"],
                    chunk_size=job["chunk_tokens"],
                ),
            ),
            request_generator_config=SyntheticRequestGeneratorConfig(
                length_generator_config=FixedRequestLengthGeneratorConfig(max_tokens=job["max_len"])
            ),
            execution_time_predictor_config=RandomForrestExecutionTimePredictorConfig(
                model_profiling_dataset="compute",
                network_profiling_dataset="network",
                kv_cache_prediction_granularity=_CONTEXT_STEP,
                prediction_max_prefill_chunk_size=job["max_len"],
                prediction_max_batch_size=job["max_running"],
                prediction_max_tokens_per_request=job["max_len"] + _CONTEXT_STEP,
                attention_decode_batching_overhead_fraction=job["batching"],
                nccl_cpu_launch_overhead_ms=job["launch_ms"],
                k_fold_cv_splits=2,
                num_estimators=[100],
                max_depth=[16],
                min_samples_split=[2],
                no_cache=True,
            ),
            metrics_config=MetricsConfig(
                write_metrics=False,
                enable_chrome_trace=False,
                store_plots=False,
                store_request_metrics=False,
                store_batch_metrics=False,
                store_utilization_metrics=False,
            ),
        )

    def batches(self, batches: list[list[list[int]]]) -> list[float]:
        """Seconds of each batch of rows [tokens, before] on a stage."""
        found = []
        for rows in batches:
            counts = [tokens for tokens, _ in rows]
            totals = [tokens + before for tokens, before in rows]
            requests = [Request(0.0, total, 1) for total in totals]
            batch = Batch(0, requests, counts, totals)
            found.append(self._predictor.get().get_execution_time(batch, 0).total_time)
        return found

    def requests(self, rows: list[list[float]]) -> dict[str, float]:
        """The P99 of the delay until requests are scheduled first, and the last answer's time."""
        made = _Requests(rows).generate()
        generator = _Requests([])
        generator.generate = lambda: made
        simulator.RequestGeneratorRegistry = _Same(generator)
        Replica._id = -1  # numbers begin at 0 in each simulation
        run = simulator.Simulator(self._config)
        run._write_output = lambda: None
        run.run()
        delays = [request.scheduling_delay for request in made]
        return {
            "p99_queueing_s": float(np.percentile(delays, 99)),
            "end_s": max(request.completed_at for request in made),
        }


def main() -> None:
    """Answer until the input ends."""
    logging.disable(logging.ERROR)
    asked = (json.loads(line) for line in sys.stdin)
    vidur = _Vidur(next(asked), Path(sys.argv[1]).resolve())
    replies, sys.stdout = sys.stdout, sys.stderr
    for question in asked:
        if "batches" in question:
            reply: Any = vidur.batches(question["batches"])
        else:
            reply = vidur.requests(question["requests"])
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
