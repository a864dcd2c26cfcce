"""Batch script for Slurm: a Ray cluster on the nodes of a job, for as long as a command runs on the first of them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

_FIRST_PORT, _PORTS = 20_000, 10_000
_LAST_CALL = "--signal=B:TERM@120"  # the command ends itself before its time is over: job controllers write checkpoints

_SCRIPT = """\
set -euo pipefail
export RAY_USAGE_STATS_ENABLED=0 RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_ADDRESS
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
RAY_ADDRESS=$(hostname -I | cut -d ' ' -f 1):$(({first} + SLURM_JOB_ID % {ports}))
srun --overlap bash -c '
  if [ "$SLURM_PROCID" = 0 ]; then
    exec ray start --block --num-gpus={gpus} --head --include-dashboard=false \
      --port="${{RAY_ADDRESS#*:}}" --node-ip-address="${{RAY_ADDRESS%:*}}" \
      --temp-dir="${{TMPDIR:-/tmp}}/rlpto-$SLURM_JOB_ID"
  fi
  until ray health-check --address "$RAY_ADDRESS" >/dev/null 2>&1; do sleep 1; done
  exec ray start --block --num-gpus={gpus} --address="$RAY_ADDRESS"' >"ray-$SLURM_JOB_ID.log" 2>&1 &
until ray health-check --address "$RAY_ADDRESS" >/dev/null 2>&1; do
  kill -0 $! || {{ echo "Ray did not start: see ray-$SLURM_JOB_ID.log" >&2; exit 1; }}
  sleep 1
done
exec {command}
"""


def batch_script(
    command: Sequence[str], nodes: int, gpus: int, hours: float, *, logical: bool = False, more: Sequence[str] = ()
) -> str:
    """Return a script for `sbatch`. Slurm ends Ray with the job; no other user's processes are touched.

    command: command to run on the first node, with RAY_ADDRESS and this cluster's token in its environment. gpus: GPUs
    of each node. hours: time limit. logical: GPUs exist only in Ray, for nodes without any. more: more options of
    sbatch.
    """
    asked = ["--job-name=rlpto", f"--nodes={nodes}", "--ntasks-per-node=1", "--exclusive", _LAST_CALL]
    asked += [f"--time={math.ceil(hours * 60)}", *([] if logical else [f"--gpus-per-node={gpus}"]), *more]
    head = ["#!/bin/bash", *(f"#SBATCH {option}" for option in asked)]
    rest = _SCRIPT.format(first=_FIRST_PORT, ports=_PORTS, gpus=gpus, command=shlex.join(command))
    return "\n".join([*head, rest])
