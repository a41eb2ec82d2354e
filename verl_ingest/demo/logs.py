"""Logs of a made-up run with planted faults, the same ones each time: for the demo, the tests and the benchmarks.

Eight ranks on two nodes write rank logs (odd ranks long lines, even ranks wide ones) and a console. Planted are:

    step 60         45 s without a line after it
    step 88         critic loss 6 times as high, all ranks
    step 128        KL spike of one rank (rank 3, +0.07)
    step 137        NaN reward of rank 5, with a console warning
    step 150 on     KL runaway, entropy collapse, clip fraction up; from 170 the reward falls
    steps 154, 155  zero gradients, KL 93 % of the loss (console)
    steps 160-165   data loading bottleneck: latency x2.8, GPU utilisation x0.38, forward latency x0.6, disk wait x30
    steps 170-180   straggler: rank 6, forward latency x4
    steps 190-193   20 % empty responses
    step 199        out of memory on rank 3, NCCL error on rank 5 as its consequence (console)
    step 200 on     rank 7 is silent, until
    step 205        the run dies, and is resumed at 200 by new processes that append to the same files
    always          the second node's clock is 350 ms ahead
"""

import json
import random
import time
from pathlib import Path
from typing import Any, TextIO

START = 1_772_380_800  # 2026-03-01T16:00:00Z
STEP_SECONDS = 12.0
STAGES = ("actor", "critic", "rollout", "reward", "system")
LAST_OF_FIRST_ATTEMPT = 205
RESUMED_AT = 200


def write(folder: Path, *, steps: int = 240, ranks: int = 8, seed: int = 7, long_only: bool = False) -> None:
    """Write the log files of a run into a folder; 240 steps of 8 ranks are 23,000 lines."""
    folder.mkdir(parents=True, exist_ok=True)
    _Run(folder, steps=steps, ranks=ranks, seed=seed, long_only=long_only).write()


class _Run:
    def __init__(self, folder: Path, *, steps: int, ranks: int, seed: int, long_only: bool) -> None:
        self.steps, self.ranks, self.long_only = steps, ranks, long_only
        self.random = random.Random(seed)
        self.files: dict[tuple[str, int], TextIO] = {
            (stage, rank): open(folder / f"verl_{stage}_rank{rank}.jsonl", "w")  # noqa: SIM115 (closed by `write`)
            for stage in STAGES
            for rank in range(ranks)
            if stage != "system" or rank % 4 == 0
        }
        self.console = open(folder / "console.log", "w")  # noqa: SIM115

    def write(self) -> None:
        moment = float(START)
        first = min(LAST_OF_FIRST_ATTEMPT, self.steps)
        for step in range(1, first + 1):
            self._step(step, moment, attempt=1)
            moment += STEP_SECONDS + (45 if step == 60 else 0)
        if self.steps > LAST_OF_FIRST_ATTEMPT:
            moment += 300
            for (_, rank), file in self.files.items():
                if rank == 0:
                    event = {"event": "resume", "from_step": RESUMED_AT, "timestamp_ns": int(moment * 1e9), "rank": 0}
                    file.write(json.dumps(event) + "\n")
            for step in range(RESUMED_AT, self.steps + 1):
                self._step(step, moment, attempt=2)
                moment += STEP_SECONDS
        for file in [*self.files.values(), self.console]:
            file.close()

    def _about(self, mean: float, deviation: float) -> float:
        return self.random.gauss(mean, deviation)

    def _positive(self, mean: float, deviation: float) -> float:
        return abs(self.random.gauss(mean, deviation))

    def _step(self, step: int, moment: float, *, attempt: int) -> None:
        runaway = max(0, step - 150) * 0.0012
        kl = max(0.001, self._about(0.012, 0.002) + runaway)
        entropy = max(0.3, self._about(1.9, 0.05) - max(0, step - 150) * 0.012)
        reward = self._about(0.42, 0.02) + min(step, 150) * 0.001 - max(0, step - 170) * 0.008
        bottleneck = 160 <= step <= 165
        for rank in range(self.ranks):
            if rank == self.ranks - 1 and step >= 200 and attempt == 1:
                continue
            line = {"rank": rank, "step": step, "attempt": attempt}
            forward = (4.0 if rank == 6 and 170 <= step <= 180 else 1.0) * (0.6 if bottleneck else 1)
            self._line(
                "rollout",
                moment + 3,
                line,
                {
                    "rollout/latency_ms": self._positive(2900, 150) * (2.8 if bottleneck else 1),
                    "rollout/response_length": round(self._positive(220, 20), 1),
                    "rollout/empty_response_ratio": round(
                        0.2 + self._positive(0, 0.01) if 190 <= step <= 193 else self._positive(0.01, 0.005), 4
                    ),
                    "throughput_tokens_per_sec": self._positive(3900, 120) / (2.5 if bottleneck else 1),
                },
            )
            self._line(
                "reward",
                moment + 5,
                line,
                {
                    "reward_mean": float("nan") if step == 137 and rank == 5 else reward + self._about(0, 0.01),
                    "reward_std": self._positive(0.2, 0.02),
                    "kl_divergence": kl + (0.07 if step == 128 and rank == 3 else 0),
                    "reward/critic_score_std": self._positive(0.31, 0.02),
                },
            )
            self._line(
                "critic",
                moment + 7,
                line,
                {
                    "critic_loss": self._positive(0.08, 0.01) * (6 if step == 88 else 1),
                    "critic/forward_latency_ms": self._positive(310, 10) * forward,
                },
            )
            self._line(
                "actor",
                moment + 9,
                line,
                {
                    "actor_loss": self._about(-0.02, 0.004),
                    "entropy": entropy,
                    "clip_fraction": self._positive(0.04, 0.01) + runaway * 3,
                    "adv_mean": self._about(0.1, 0.02) - runaway,
                    "adv_std": self._positive(0.22, 0.02),
                    "grad_norm": self._positive(1.1, 0.1),
                    "actor/forward_latency_ms": self._positive(640, 15) * forward,
                    "actor/reduce_grad_ms": self._positive(90, 6),
                    "memory/actor_peak_gb": self._positive(61, 0.5),
                },
            )
            if ("system", rank) in self.files:
                self._line(
                    "system",
                    moment + 9.5,
                    line,
                    {
                        "gpu/utilization_pct": self._positive(82, 2) * (0.38 if bottleneck else 1),
                        "gpu/memory_used_gb": self._positive(66, 0.4),
                        "system/cpu_load_avg": self._positive(14, 1),
                        "system/disk_io_wait_ms": self._positive(2, 0.4) * (30 if bottleneck else 1),
                    },
                )
        self._console(step, moment, kl=kl, entropy=entropy, reward=reward, runaway=runaway, bottleneck=bottleneck)

    def _line(self, stage: str, moment: float, line: dict[str, int], values: dict[str, Any]) -> None:
        rank, second_node = line["rank"], line["rank"] >= self.ranks // 2
        common = {"stage": stage, "step": line["step"], "rank": rank}
        origin = {
            "timestamp_ns": int((moment + (0.35 if second_node else 0.0)) * 1e9) + self.random.randrange(1000),
            "hostname": f"train-node-{1 + second_node:02d}",
            "pid": 4100 + rank + 1000 * (line["attempt"] - 1),
        }
        if self.long_only or rank % 2:
            lines = [{**common, "metric_name": name, "value": value, **origin} for name, value in values.items()]
        else:
            lines = [{**common, **values, **origin}]
        self.files[stage, rank].writelines(json.dumps(line) + "\n" for line in lines)

    def _console(
        self, step: int, moment: float, *, kl: float, entropy: float, reward: float, runaway: float, bottleneck: bool
    ) -> None:
        throughput, utilisation = (3900 // 2.5, 31) if bottleneck else (3900, 82)
        self._say(
            moment + 3.2,
            "INFO",
            "workers/rollout/vllm_rollout.py:287",
            0,
            "Rollout completed in 3.2s | Tokens generated: 12800 | "
            f"Throughput: {throughput:.0f} tok/s | GPU Util: {utilisation}%",
        )
        self.console.write(
            f"[DEBUG] Rollout for prompt_id={1000 + step} took 1.24s | tokens=512 | avg_latency=2.4ms/token\n"
            "[DEBUG] logits shape=torch.Size([64, 512, 151936]) dtype=bfloat16\n"
        )
        if step == 137:
            where = "workers/reward_manager/naive_reward_manager.py:67"
            self._say(moment + 5.1, "WARNING", where, 5, "NaN detected in reward tensor! Filling with zeros...")
        if step == 199:
            text = "CUDA OOM during critic forward! Attempting recovery..."
            self._say(moment + 7.3, "ERROR", "trainer/main_ppo.py:512", 3, text)
            self._tracebacks()
        self._say(
            moment + 11,
            "INFO",
            "trainer/main_ppo.py:423",
            0,
            f"PPO Step {step} | Epoch {step / 6400:.2f} | Global Steps {step} | Actor LR: 1e-06 | KL: {kl:.4f} | "
            f"Entropy: {entropy:.3f} | Reward: {reward:.3f} | Adv Mean: {0.1 - runaway:.3f} | Adv Std: 0.217 | "
            f"Clip Fraction: {0.04 + runaway * 3:.3f}",
        )
        if step in (154, 155):
            text = "Zero gradients detected in actor update! Skipping step."
            self._say(moment + 11.2, "WARNING", "trainer/main_ppo.py:488", 0, text)
            self.console.write("Loss breakdown: policy=0.0012 | value=0.045 | kl=0.823 | entropy=-0.012\n")

    def _say(self, moment: float, level: str, where: str, rank: int, text: str) -> None:
        seconds, milliseconds = int(moment), int(moment % 1 * 1000)
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
        self.console.write(f"[{clock},{milliseconds:03d}] [{level}] [{where}] [Rank {rank}] {text}\n")

    def _tracebacks(self) -> None:
        """Write the tracebacks of two processes, interleaved line by line as Ray forwards them."""
        oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
        nccl = "RuntimeError: NCCL error: unhandled system error, rank 3 did not answer"
        for part in range(4):
            for pid, rank, last in ((4103, 3, oom), (4105, 5, nccl)):
                text = (
                    "Traceback (most recent call last):",
                    f'  File "/opt/train/worker.py", line {40 + rank}, in update_critic',
                    "    loss.backward()",
                    last,
                )[part]
                self.console.write(f"(WorkerDict pid={pid}, ip=10.0.0.{1 + rank // 4}) {text}\n")
