"""Map a recorded job (GPUs, duration) to a training job: a model, its work, its limits, its priority."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from rlpto.core.jobs import Job
from rlpto.core.stopping import StopRule, parse_rule
from rlpto.io.arrays import BoolArray, FloatArray, IntArray
from rlpto.io.errors import ConfigError, JobError
from rlpto.performance.metrics import DEFAULT_METRIC, METRICS, MetricName
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.workloads.mapping_settings import BY_TIME, NAMING, MappingSettings

if TYPE_CHECKING:  # pandas is slow to import, and settings are needed without it
    from rlpto.workloads.trace import Trace

HOUR = 3600.0
MODELS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
"""Default models of recorded jobs: the six measured ones."""

CATEGORY_BOUNDS = (1.0, 10.0, 100.0)
"""GPU-hours that separate small, medium, large and extra large jobs."""
CATEGORIES = (("cifar10", "ncf"), ("bert", "deepspeech2"), ("yolov3",), ("imagenet",))
"""Models of small to extra large jobs, from the workloads of Pollux (OSDI 2021) and Sia (SOSP 2023)."""
LEAST_EFFICIENCY = 0.25
"""Least share of linear speed-up on the requested GPUs for a model to be drawn for a job, if any model reaches it."""


def job_types(
    trace: Trace,
    settings: MappingSettings,
    available: Sequence[str] = MODELS,
    metric: MetricName = DEFAULT_METRIC,
    batch_sizes: Callable[[str], Sequence[int]] | None = None,
) -> tuple[JobType, ...]:
    """Return the job types that speed tables must hold for `map_jobs`. available: models that have a profile.

    metric: metric of jobs for which the trace names none. Types of the default metric are always included, because they
    determine models and work. batch_sizes: returns the batch sizes that a model may get, for `fixed_batch`; types that
    adapt their batch size are included in any case, because models are drawn by them.
    """
    models: Iterable[str] = chain(*CATEGORIES) if settings.mode == "category" else settings.models or available
    pairs: set[tuple[str, int | None]] = {(model, None) for model in models}
    if settings.mode in NAMING:
        pairs = set(_given_pairs(trace, settings))
    if settings.fixed_batch > 0 and batch_sizes is not None:
        pairs |= {(model, size) for model, _ in pairs for size in batch_sizes(model)}
    metrics = {DEFAULT_METRIC, *_metrics(trace, metric)}
    return tuple(sorted((JobType(*pair, name) for pair in pairs for name in metrics), key=type_order))


def type_order(job_type: JobType) -> tuple[str, int, int, tuple[str, ...]]:
    """Sort key of job types: model, batch size, metric and GPU types."""
    return job_type.model, job_type.batch_size or 0, list(METRICS).index(job_type.metric), job_type.gpu_types


def map_jobs(
    trace: Trace,
    tables: SpeedTables,
    settings: MappingSettings,
    seed: int,
    capacity: int,
    gpus_per_node: int,
    max_gpus_of: Callable[[JobType], int | None] | None = None,
    metric: MetricName = DEFAULT_METRIC,
    gpus_by_type: Mapping[str, int] | None = None,
) -> list[Job]:
    """Give every job of a trace a model and its work; the same seed gives the same jobs.

    capacity, gpus_per_node: GPUs of the cluster, and of a node (for packed placements). max_gpus_of: additional limit
    on a job type's GPUs. metric: metric of jobs for which the trace names none; models and work of the jobs do not
    depend on it. gpus_by_type: GPUs of the cluster by GPU type. A job takes its recorded time on the first type that it
    may use (`Trace.allowed_types`). Default: one type.

    *duration* draws a model by weight among models that use the requested GPUs well enough (LEAST_EFFICIENCY; if none
    does, among the best), gives the job the profile's epochs, and chooses data_size such that these epochs take the
    recorded duration on the requested GPUs, packed on as few nodes as possible and without rescale delay: data_size =
    samples x duration / elapsed. One finished job of a model then reveals the epochs of all jobs, and the size of
    a job's data set reveals its duration. With `settings.users` nothing reveals it: jobs of a user draw one model
    together (a different one for unsuitable numbers of GPUs), data_size is such that the profile's epochs take the same
    time in all jobs, the geometric mean of durations, and a job has as many epochs as its duration takes. *category*
    keeps epochs and data size of the drawn model. *given* keeps them for the model and batch size that the trace names.
    `settings.fixed_batch` changes neither the drawn models nor the jobs' times on their requested GPUs.

    Raises JobError for a job that fits neither cluster nor tables, or lacks a required model or user; ConfigError for
    a model that the tables do not hold.
    """
    if settings.mode != "given" and not np.isfinite(trace.duration).all():
        trace = trace.take(np.isfinite(trace.duration))
    allowed, most = trace.allowed_types(gpus_by_type or {"": capacity})
    bound = np.minimum(most, tables.max_gpus)
    oversized = trace.gpus > bound
    if oversized.any() and settings.oversized == "error":
        at = int(np.argmax(oversized))
        what = "the cluster has" if most[at] <= tables.max_gpus else "the speed tables cover"
        what += f" of {' or '.join(allowed[at])}" if allowed[at] else ""
        raise JobError(
            f"job {trace.texts('name')[at]}: wants {trace.gpus[at]} GPUs, expected at most the {bound[at]} {what} "
            "(mapping.oversized: skip or clip)"
        )
    if oversized.any() and settings.oversized == "skip":
        trace, bound = trace.take(~oversized), bound[~oversized]
        allowed = [names for names, large in zip(allowed, oversized, strict=True) if not large]
    gpus = np.minimum(trace.gpus, bound)
    duration = np.clip(trace.duration * trace.gpus / gpus, settings.min_duration, settings.max_duration)
    seconds = _seconds_packed(tables, gpus_per_node)
    useful = [(max_gpus_of(job_type) if max_gpus_of else None) or tables.max_gpus for job_type in tables.types]
    capped = (settings.model_max_gpus.get(job_type.model, tables.max_gpus) for job_type in tables.types)
    limits = np.array([min(pair) for pair in zip(useful, capped, strict=True)])
    users = _users(trace, settings, seed)
    drawer = np.arange(len(trace)) if settings.users is None else np.unique(users, return_inverse=True)[1]
    rng = np.random.default_rng([seed, 0])
    if settings.mode in NAMING:
        job_type = _given_types(trace, tables, settings)
    elif settings.mode == "category":
        job_type = _draw_by_category(gpus * duration / HOUR, gpus, tables, limits, rng)
    else:
        job_type = _draw_by_weight(gpus, allowed, tables, settings, seconds, limits, rng.random(len(trace))[drawer])
    if settings.fixed_batch > 0:
        fixed = _draw_share(settings.fixed_batch, drawer, np.random.default_rng([seed, 5]))
        job_type = np.where(fixed, _with_fastest_batch(job_type, gpus, tables, seconds, limits), job_type)
    job_type = _limited(job_type, allowed, tables)
    data_size, epochs = tables.samples[job_type], tables.epochs[job_type].astype(np.float64)
    if settings.mode in BY_TIME:
        usual = duration
        if settings.users is not None:
            usual = np.full(len(trace), np.exp(np.log(duration).sum() / max(len(trace), 1)))
            rows = _packed_rows(tables, gpus_per_node)[job_type, gpus]
            epochs = _epochs_taking(duration / usual, rows, job_type, tables)
        if settings.mode == "named" and tables.floor_size.size:
            _check_sizes(trace, tables, job_type, gpus)
        data_size = data_size * usual / seconds[job_type, gpus]
    rigid = _draw_share(settings.rigid, drawer, np.random.default_rng([seed, 6]))
    most = np.where(rigid, gpus, _max_gpus(gpus, settings, bound, limits[job_type]))
    priorities = _priorities(trace, settings.priority_shares, seed)
    return [
        Job(
            name=name,
            submit_time=submit,
            model=tables.types[k].model,
            epochs=work,
            data_size=size,
            requested_gpus=requested,
            min_gpus=least,
            max_gpus=highest,
            priority=priority,
            batch_size=tables.types[k].batch_size,
            metric=chosen_by,
            stop=stop,
            user=user,
            gpu_types=tables.types[k].gpu_types,
        )
        for name, user, submit, k, work, size, requested, least, highest, priority, chosen_by, stop in zip(
            trace.texts("name"),
            users,
            *(column.tolist() for column in (trace.submit_time, job_type, epochs, data_size, gpus)),
            *(column.tolist() for column in (np.where(rigid, gpus, 1), most, priorities)),
            _metrics(trace, metric),
            _stop_rules(trace, settings),
            strict=True,
        )
    ]


def _check_sizes(trace: Trace, tables: SpeedTables, job_type: IntArray, gpus: IntArray) -> None:
    """Raise JobError for a job that requests a number of GPUs on which its model does not run."""
    for at in np.flatnonzero(tables.floor_size_anywhere[job_type, gpus] != gpus)[:1].tolist():
        sizes = np.unique(tables.floor_size_anywhere[job_type[at]])
        raise JobError(
            f"job {trace.texts('name')[at]}: model {tables.types[job_type[at]].model} does not run on {gpus[at]} GPUs; "
            f"expected one of {', '.join(map(str, sizes[sizes > 0].tolist())) or 'another model'}"
        )


def requested_work(trace: Trace, tables: SpeedTables, settings: MappingSettings, gpus_per_node: int) -> FloatArray:
    """Return the GPU-seconds [M] that every job of a trace requests: requested GPUs times the job's time on them.

    The time is the recorded one, limited by min_duration and max_duration; unknown durations count as 0. In mode
    *given* the time comes from the speed tables on the requested GPUs (or as many as they cover), packed on as few
    nodes as possible. Raises the same errors as `map_jobs`.
    """
    if settings.mode != "given":
        return np.nan_to_num(np.clip(trace.duration, settings.min_duration, settings.max_duration)) * trace.gpus
    seconds = _seconds_packed(tables, gpus_per_node)
    gpus = np.minimum(trace.gpus, tables.max_gpus)
    return np.asarray(seconds[_given_types(trace, tables, settings), gpus] * gpus)


def _metrics(trace: Trace, usual: MetricName) -> list[str]:
    """Return the metric of every job; the usual metric if the trace names none."""
    return [named or usual for named in trace.texts("metric")]


def _stop_rules(trace: Trace, settings: MappingSettings) -> list[StopRule | None]:
    """Return every job's rule for stopping early: its own, or the rule in the settings."""
    texts = trace.texts("stop")
    rules = {text: parse_rule(text) if text else settings.stop for text in set(texts)}
    return [rules[text] for text in texts]


def _users(trace: Trace, settings: MappingSettings, seed: int) -> list[str]:
    """Return the user of every job, or an empty text if the user is unknown."""
    if settings.users == "clustered":
        from rlpto.workloads.synthetic import cluster_users

        return [f"user-{number}" for number in cluster_users(trace, seed)]
    users = trace.texts("user")
    if settings.users == "recorded" and "" in users:
        name = trace.texts("name")[users.index("")]
        raise JobError(f"job {name}: the trace names no user, expected one (mapping.users: clustered or null)")
    return users


def _seconds_packed(tables: SpeedTables, gpus_per_node: int) -> FloatArray:
    """Return the seconds [T, K + 1] that a job type's default epochs over its default data take on k packed GPUs of
    the first GPU type on which it runs; infinity if it runs on none."""
    seconds = tables.elapsed[_packed_rows(tables, gpus_per_node), tables.epochs[:, None]]
    if tables.floor_size.size:
        seconds = np.where(tables.floor_size > 0, seconds, np.inf)
    for types in tables.by_gpu_type.T[1:]:
        seconds = np.where(np.isfinite(seconds), seconds, seconds[types])
    return seconds


def _packed_rows(tables: SpeedTables, gpus_per_node: int) -> IntArray:
    """Return the rows [T, K + 1] of the speed tables for k packed GPUs, by size alone."""
    gpus = np.arange(tables.max_gpus + 1)
    nodes = np.clip(-(-gpus // gpus_per_node), 1, tables.row.shape[1])
    return tables.row[:, nodes - 1, gpus].astype(np.int64)


def _epochs_taking(part: FloatArray, rows: IntArray, job_type: IntArray, tables: SpeedTables) -> FloatArray:
    """Return the epochs [M] that take `part` [M] of the time of all epochs of a job type, at the speeds of rows [M].
    Epochs beyond the type's last take as long as the last."""
    epochs = np.empty(len(part))
    for i, (row, k) in enumerate(zip(rows.tolist(), job_type.tolist(), strict=True)):
        ends = tables.elapsed[row, : tables.epochs[k] + 1]
        past = max(part[i] - 1, 0.0) * ends[-1] / (ends[-1] - ends[-2])
        epochs[i] = np.interp(part[i] * ends[-1], ends, np.arange(len(ends))) + past
    return epochs


def _type_index(tables: SpeedTables, model: str, batch_size: int | None) -> int:
    """Return the position of a job type. Raises ConfigError, with the nearest model, if the tables do not hold it."""
    if (job_type := JobType(model, batch_size)) in tables.types:
        return tables.type_index(job_type)
    models = sorted({known.model for known in tables.types})
    if model in models:
        batch = "an adaptive batch size" if batch_size is None else f"batch size {batch_size}"
        raise ConfigError(f"model {model}: no speed table for {batch}, expected one of every type of job_types()")
    near = difflib.get_close_matches(model, models, n=1, cutoff=0.0)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"model {model!r} has no profile, expected one of {', '.join(models)}{hint}")


def _limited(job_type: IntArray, allowed: Sequence[tuple[str, ...]], tables: SpeedTables) -> IntArray:
    """Return the job types [n] that restrict types `job_type` [n] to the allowed GPU types [n]."""
    types = [*zip(job_type.tolist(), allowed, strict=True)]
    found = {(k, names): tables.type_index(tables.types[k]._replace(gpu_types=names)) for k, names in set(types)}
    return np.array([found[limited] for limited in types], dtype=np.int64)


def _draw_by_weight(
    gpus: IntArray,
    allowed: Sequence[tuple[str, ...]],
    tables: SpeedTables,
    settings: MappingSettings,
    seconds: FloatArray,
    limits: IntArray,
    chance: FloatArray,
) -> IntArray:
    """Draw the type [M] of every job by weight and chance [M] in [0, 1), among types that use its GPUs well enough."""
    adaptive = [job_type.model for job_type in tables.types if job_type == JobType(job_type.model)]
    weights = dict.fromkeys(adaptive, 1.0) if settings.models is None else settings.models
    types = np.array([_type_index(tables, model, None) for model in weights], dtype=np.int64)
    if len(types) == 0:
        raise ConfigError("mapping duration: no speed table for an adaptive batch size, expected one of each model")
    weight = np.array(list(weights.values()))
    job_type = np.zeros(len(gpus), dtype=np.int64)
    for count, names in sorted(set(zip(gpus.tolist(), allowed, strict=True))):
        own = _limited(types, [names] * len(types), tables)
        usable = np.isfinite(seconds[own, count]) & (weight > 0)
        efficiency = seconds[own, 1] / (seconds[own, count] * count)
        efficiency = np.where((limits[types] >= count) & usable, efficiency, 0.0)
        sensible = usable & (efficiency >= min(LEAST_EFFICIENCY, float(efficiency.max())))
        if not sensible.any():
            where = f"{count} GPUs of {' or '.join(names) or 'the cluster'}"
            raise ConfigError(f"mapping duration: no model of {', '.join(weights)} can run on {where}")
        mine = (gpus == count) & [limited == names for limited in allowed]
        job_type[mine] = pick(types, np.where(sensible, weight, 0.0), chance[mine])
    return job_type


def _draw_by_category(
    gpu_hours: FloatArray, gpus: IntArray, tables: SpeedTables, limits: IntArray, rng: np.random.Generator
) -> IntArray:
    """Draw the type [M] of every job uniformly in its GPU-time class, among models that can use its GPUs if any can."""
    chance = rng.random(len(gpus))
    category = np.searchsorted(CATEGORY_BOUNDS, gpu_hours, side="right")
    job_type = np.zeros(len(gpus), dtype=np.int64)
    for number, models in enumerate(CATEGORIES):
        types = np.array([_type_index(tables, model, None) for model in models], dtype=np.int64)
        for count in np.unique(gpus[category == number]):
            mine = (category == number) & (gpus == count)
            able = limits[types] >= count
            weight = (able if able.any() else ~able).astype(np.float64)
            job_type[mine] = pick(types, weight, chance[mine])
    return job_type


def _draw_share(share: float, drawer: IntArray, rng: np.random.Generator) -> BoolArray:
    """Draw which jobs [M] belong to a share of the jobs, rounded; to less than it if groups are too large.

    drawer: [M] group of every job. All jobs of a group belong to it or none. Groups are taken in random order if they
    fit.
    """
    jobs = np.bincount(drawer)
    chosen, count = np.zeros(len(jobs), dtype=np.bool_), 0
    for one in rng.permutation(len(jobs)).tolist() if share > 0 else ():
        if count + jobs[one] <= share * len(drawer) + 0.5:
            chosen[one] = True
            count += int(jobs[one])
    return chosen[drawer]


def _with_fastest_batch(
    job_type: IntArray, gpus: IntArray, tables: SpeedTables, seconds: FloatArray, limits: IntArray
) -> IntArray:
    """Return the types [M] with the same models and the fixed batch size that trains fastest on `gpus` [M], among
    batch sizes that can be spread over these GPUs if there are any."""
    found = job_type.copy()
    for own, count in set(zip(job_type.tolist(), gpus.tolist(), strict=True)):
        usual = tables.types[own]
        fixed = {other for other in tables.types if other.batch_size and other._replace(batch_size=None) == usual}
        if not fixed:
            raise ConfigError(f"mapping fixed_batch: no speed table of {usual.model} for a fixed batch size")
        types = np.sort([tables.type_index(other) for other in fixed])
        able = limits[types] >= count
        time = np.where(able if able.any() else ~able, seconds[types, count], np.inf)
        found[(job_type == own) & (gpus == count)] = types[np.argmin(time)]
    return found


def pick(types: IntArray, weight: FloatArray, chance: FloatArray) -> IntArray:
    """Choose one of `types` for every number [n] in [0, 1), in proportion to its weight."""
    share = np.cumsum(weight)
    return np.asarray(types[np.searchsorted(share, chance * share[-1], side="right")])


def _given_types(trace: Trace, tables: SpeedTables, settings: MappingSettings) -> IntArray:
    """Return the type [M] of every job by the model and batch size it names."""
    models = trace.texts("model")
    if "" in models:
        name = trace.texts("name")[models.index("")]
        raise JobError(f"job {name}: the trace names no model, expected one (mapping.mode: duration or category)")
    pairs = _given_pairs(trace, settings)
    index = {pair: _type_index(tables, *pair) for pair in dict.fromkeys(pairs)}
    return np.array([index[pair] for pair in pairs], dtype=np.int64)


def _given_pairs(trace: Trace, settings: MappingSettings) -> list[tuple[str, int | None]]:
    """Return the model of every job and its fixed batch size, or None if it adapts the size or the trace names none."""
    named = zip(trace.texts("model"), trace.integers("batch_size").tolist(), strict=True)
    adaptive, fixed = settings.adaptive_batch, settings.fixed_batch_models
    return [(model, batch if batch and (not adaptive or model in fixed) else None) for model, batch in named]


def _max_gpus(gpus: IntArray, settings: MappingSettings, bound: IntArray, limits: IntArray) -> IntArray:
    """Return the most GPUs [M] of every job if it is elastic, never fewer than it requests. limits: [M] limit of its
    type; in mode given it replaces the multiple of the request."""
    most = np.minimum(np.minimum(settings.max_gpus, bound), limits)
    if settings.mode != "given":
        most = np.minimum(most, (settings.max_gpus_factor * gpus).astype(np.int64))
    return np.maximum(most, gpus)


def _priorities(trace: Trace, shares: Sequence[float], seed: int) -> IntArray:
    """Return the priority class [M] of every job: recorded, or drawn."""
    chance = np.random.default_rng([seed, 1]).random(len(trace))
    drawn = np.searchsorted(np.cumsum(shares)[:-1], chance, side="right")
    return np.where(trace.priority >= 0, trace.priority, drawn)
