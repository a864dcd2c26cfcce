"""A database as a busy service has them, for pages: jobs of two users in every state, nodes, allocations, curves."""

from __future__ import annotations

import math
import time

from rlpto.service.settings import ServiceSettings
from rlpto.store import curves, requests, status
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import JobRow, change_job, insert_job
from rlpto.store.logs import OutputLog, job_folder
from rlpto.store.rows import insert, put, put_all

NODES, GPUS = 4, 2


def fill_demo(settings: ServiceSettings) -> dict[str, str]:
    """Fill a database that has users and a program. The id of one job in each state."""
    store, now = Store(settings.database, durable=False), time.time()
    ids: dict[str, str] = {}
    with store.transaction():
        for number in range(4 * NODES):
            owner, began = ("ann", "bob")[number % 2], now - (3000, 1800, 700, 50)[number // NODES]
            state = ("finished", "finished", "running", "queued")[number // NODES]
            job = insert_job(store, JobRow(owner, f"resnet {number}", "digits", 20.0, GPUS, 1, 4), began).id
            if state == "queued":
                change_job(store, job, now, state=state, queued=began)
            else:
                _trained(store, job, owner, f"node-{number % NODES}", began, now if state == "running" else None)
            ids[state] = job
        one = insert_job(store, JobRow("ann", "one report", "digits", 5.0), now - 30)
        change_job(store, one.id, now, state="running", started=now - 20, progress=1.0, gpus_held=1)
        said = {"loss": 2.0, "accuracy": 0.3, "goodput": 900.0, "noise_scale": 300.0}
        insert(store, "points", job=one.id, at=now - 5, epoch=1.0, gpus=1, **said)
        ids["one"] = one.id
        _state(store, now)
    writer = OutputLog(job_folder(settings.folder, ids["running"]))
    for epoch in range(80):
        writer.write(f"epoch {epoch:3d}  loss {2.3 * math.exp(-epoch / 20):.4f}  <b>not bold</b>", now - 400 + epoch)
    store.close()
    return ids


def _trained(store: Store, job: str, owner: str, node: str, began: float, now: float | None) -> None:
    """What a job has left that has trained since `began`, a thousand seconds long or until now."""
    insert(store, "spans", job=job, owner=owner, node=node, gpus=GPUS, started=began)
    until = began + 1000.0 if now is None else now
    seen = {"loss": 0.5, "accuracy": 0.9, "progress": 20.0, "gpu_seconds": GPUS * (until - began)}
    if now is None:
        curves.close_spans(store, job, until)
        change_job(store, job, until, started=began, state="finished", ended=until, **seen)
    else:
        change_job(store, job, until, started=began, state="running", gpus_held=GPUS, **seen | {"progress": 12.0})
    for step in range(60):
        epoch, at = step / 3, began + (until - began) * step / 60
        loss, accuracy = 2.3 * math.exp(-epoch / 6), 0.97 * (1 - math.exp(-epoch / 4))
        more = {"loss": loss, "accuracy": accuracy, "goodput": 1600.0, "noise_scale": 300 + 90 * epoch}
        insert(store, "points", job=job, at=at, epoch=epoch, gpus=GPUS, **more)
    add_event(store, "job", began, job, owner, {"state": "running"})


def _state(store: Store, now: float) -> None:
    """What the scheduler writes at every decision."""
    status.beat(store, status.Heartbeat(1, now - 3600, "local", 200, 0.01), now + 3600)
    held = {span.node: {span.job: span.gpus} for span in curves.spans_between(store, now - 1, now)}
    nodes = [
        status.NodeRow(f"node-{n}", GPUS, True, "", held.get(f"node-{n}", {}), f"host-{n}.example")
        for n in range(NODES)
    ]
    put_all(store, status.NodeRow, nodes)
    queue, said = [], []
    for place, (job,) in enumerate(store.rows("SELECT id FROM jobs WHERE state = 'queued' ORDER BY seq"), 1):
        queue.append(status.QueueRow(job, place, 2 * place - 2, "jobs before it ask for GPUs, and 0 of 8 are free"))
        start = (now + 90 * place, now + 60 * place, now + 130 * place)
        said.append(status.PredictionRow(job, now, "fifo", *start, start[0] + 700, start[1] + 600, start[2] + 900))
    for (job,) in store.rows("SELECT id FROM jobs WHERE state = 'running'"):
        ends = {"finish": now + 300, "finish_low": now + 280, "finish_high": now + 330}
        said.append(status.PredictionRow(job, now, "fifo", **ends))
    status.set_queue(store, queue)
    put_all(store, status.PredictionRow, said)
    requests.add_switch(store, "elastic_fifo", "olga", "many short jobs", now - 1800, now - 1800)
    for number in range(60):
        parts = {"throughput": 2 + math.sin(number), "waiting": -1.0, "rescales": -0.5}
        weight_steps = {"shrink": math.sin(number), "spread": math.cos(number)} if number > 30 else {}
        at, reward = now - 3600 + 60 * number, sum(parts.values())
        put(store, [status.DecisionRow(at, "elastic_fifo", 0.004, 8, 7, 9, 3, reward, parts, weight_steps)])
    rows = []
    for number in range(-30, 10):
        level = 7200 * (1 + 0.5 * math.sin(number / 5))
        seen = 1.2 * level if number < 0 else None
        rows.append(status.VolumeRow(now + 600 * number, seen, level, 0.5 * level, 1.6 * level))
    status.set_volume(store, rows)
