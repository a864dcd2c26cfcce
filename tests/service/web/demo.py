"""A database as a busy service has them, for pages: jobs of two users in every state, nodes, allocations, curves."""

from __future__ import annotations

import math
import random
import time

from rlpto.service.settings import ServiceSettings
from rlpto.store import curves, requests, status
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import NewJob, change_job, insert_job
from rlpto.store.logs import OutputLog, job_folder
from rlpto.store.rows import insert, put, put_all

NODES, GPUS = 4, 2


def fill_demo(settings: ServiceSettings, jobs: int = 46, seed: int = 1) -> dict[str, str]:
    """Fill a database that has users and a program. The id of one job in each state."""
    rng, now = random.Random(seed), time.time()
    store = Store(settings.database, durable=False)
    ids: dict[str, str] = {}
    with store.transaction():
        began = now - 3600.0
        free = [[began] * GPUS for _ in range(NODES)]
        for number in range(jobs):
            owner = rng.choice(("ann", "ann", "bob"))
            gpus = rng.choice((1, 1, 2))
            new = NewJob(
                owner, f"{rng.choice(('resnet', 'bert', 'digits', 'ncf'))} {number}", "digits", 20.0, gpus, 1, 4
            )
            node = min(range(NODES), key=lambda one: sorted(free[one])[gpus - 1])
            lanes = sorted(range(GPUS), key=lambda lane: free[node][lane])[:gpus]
            start = max(free[node][lane] for lane in lanes) + rng.uniform(1, 20)
            took = rng.uniform(200, 900)
            job = insert_job(store, new, max(began, start - rng.uniform(10, 200)))
            if start < now:
                for lane in lanes:
                    free[node][lane] = start + took
                _trained(store, job.id, owner, node, gpus, start, start + took, now, rng)
                state = "finished" if start + took < now else "running"
            else:
                state = "queued"
                change_job(store, job.id, now, state=state, queued=now - 50)
            ids[state] = job.id
        failed = insert_job(store, NewJob("ann", "broken", "digits", 5.0), now - 800)
        change_job(store, failed.id, now - 700, state="failed", ended=now - 700, reason="ValueError: no such layer")
        ids["failed"] = failed.id
        one = insert_job(store, NewJob("ann", "one report", "digits", 5.0), now - 30)
        change_job(store, one.id, now, state="running", started=now - 20, progress=1.0, gpus_held=1)
        said = {"loss": 2.0, "accuracy": 0.3, "goodput": 900.0, "noise_scale": 300.0}
        insert(store, "points", job=one.id, at=now - 5, epoch=1.0, gpus=1, **said)
        ids["one"] = one.id
        ids["submitted"] = insert_job(store, NewJob("ann", "just now", "digits", 5.0), now).id
        _state(store, now, rng)
    writer = OutputLog(job_folder(settings.folder, ids["running"]))
    for epoch in range(80):
        writer.write(
            f"epoch {epoch:3d}  loss {2.3 * math.exp(-epoch / 20):.4f}  <b>not bold</b>", now - 400 + 5 * epoch
        )
    store.close()
    return ids


def _trained(
    store: Store, job: str, owner: str, node: int, gpus: int, start: float, end: float, now: float, rng: random.Random
) -> None:
    """What a job that has trained from start to end has left."""
    insert(store, "spans", job=job, owner=owner, node=f"node-{node}", gpus=gpus, started=start)
    over = end < now
    if over:
        curves.close_spans(store, job, end)
    share = min(1.0, (now - start) / (end - start))
    accuracy = loss = 0.0
    for step in range(int(60 * share) + 1):
        epoch = step / 3
        loss = 2.3 * math.exp(-epoch / 6) + rng.uniform(0, 0.1)
        accuracy = 0.97 * (1 - math.exp(-epoch / 4)) - rng.uniform(0, 0.02)
        at = start + (end - start) * step / 60
        more = {"loss": loss, "accuracy": accuracy, "goodput": 900 * gpus**0.8, "noise_scale": 300 + 90 * epoch}
        insert(store, "points", job=job, at=at, epoch=epoch, gpus=gpus, **more)
    until = min(now, end)
    changes = {"state": "finished", "ended": end} if over else {"state": "running", "gpus_held": gpus}
    seen = {"loss": loss, "accuracy": accuracy, "progress": 20.0 * share, "gpu_seconds": gpus * (until - start)}
    change_job(store, job, until, started=start, **changes, **seen)
    add_event(store, "job", start, job, owner, {"state": "running"})


def _state(store: Store, now: float, rng: random.Random) -> None:
    """What the scheduler writes at every decision."""
    status.beat(store, status.Heartbeat(1, now - 3600, "local", 200, 0.01), now + 3600)
    spans = curves.spans_between(store, now - 1, now)
    held: dict[str, dict[str, int]] = {f"node-{number}": {} for number in range(NODES)}
    for span in spans:
        if span.ended is None:
            held[span.node][span.job] = span.gpus
    nodes = [status.NodeRow(node, GPUS, True, "", jobs, f"host-{node[-1]}.example") for node, jobs in held.items()]
    put_all(store, status.NodeRow, nodes)
    waiting = [row[0] for row in store.rows("SELECT id FROM jobs WHERE state = 'queued' ORDER BY seq")]
    running = [row[0] for row in store.rows("SELECT id FROM jobs WHERE state = 'running' ORDER BY seq")]
    queue, said = [], []
    for place, job in enumerate(waiting, 1):
        ahead = 2 * place - 2
        queue.append(status.QueueRow(job, place, ahead, f"jobs before it ask for {ahead} GPUs, and 0 of 8 are free"))
        start = (now + 90 * place, now + 60 * place, now + 130 * place)
        finish = (start[0] + 700, start[1] + 600, start[2] + 900)
        said.append(status.PredictionRow(job, now, "fifo", *start, *finish))
    ends = {"finish": now + 300, "finish_low": now + 280, "finish_high": now + 330}
    said += [status.PredictionRow(job, now, "fifo", **ends) for job in running]
    status.set_queue(store, queue)
    put_all(store, status.PredictionRow, said)
    requests.add_switch(store, "elastic_fifo", "olga", "many short jobs", now - 1800, now - 1800)
    for number in range(60):
        at = now - 3600 + 60 * number
        parts = {"throughput": rng.uniform(1, 3), "waiting": -rng.uniform(0, 2), "rescales": -rng.uniform(0, 0.5)}
        steering = {"shrink": rng.uniform(-1, 1), "spread": rng.uniform(-1, 1)} if number > 30 else {}
        row = status.DecisionRow(at, "elastic_fifo", 0.004, 8, 7, 9, 3, sum(parts.values()), parts, steering)
        put(store, [row])
    rows = []
    for number in range(-30, 10):
        level = 7200 * (1 + 0.5 * math.sin(number / 5))
        seen = level * rng.uniform(0.6, 1.4) if number < 0 else None
        rows.append(status.VolumeRow(now + 600 * number, seen, level, 0.5 * level, 1.6 * level))
    status.set_volume(store, rows)
