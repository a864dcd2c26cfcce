"""Formats that are csv files with one job a line: names and meanings of their columns.

Imports nothing heavy: the names of all formats are needed for `rlpto --help`. Reading is in `csvfile.py`.

Helios: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
Acme: Hu et al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024.
openb: Weng et al., "Beware of Fragmentation", ATC 2023. PAI: Weng et al., "MLaaS in the Wild", NSDI 2022.
Pollux and Sia: the workloads of the artifacts of OSDI 2021 and SOSP 2023.
Spot: Duan et al., "GFS", ASPLOS 2026; github.com/alibaba/clusterdata.
Microsoft 2021: Gu et al., "ElasticFlow", ASPLOS 2023; github.com/microsoft/elasticflow-traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A format. All fields but `begins` and the flags are names of columns, or empty texts if there is no such column.

    begins: start of the header line. name: a job's name; a job without a name is named after its line.
    duration: in seconds. start, end: a job has run from start to end; if either is missing, `duration` counts. A job
    without a start never ran. optional: columns that may be missing. gpu_share: thousandths of each of `gpus`.
    workers: number of workers, each with `gpus`. state: state of a job; the duration of a running job is unknown.
    gpu_type, service_class, model, batch_size, metric, stop: explained in `rlpto.workloads.trace.Trace`. dates: whether
    times are dates or seconds; if None, the first submission decides. rebase: make the first submission second 0, else
    keep the file's second 0. origin: local date of the file's second 0. hours_from_utc: the clusters' clock, for dates
    with an offset. Default: the clock of the dates, or UTC if offsets differ. identified: rows that repeat exactly are
    one job. fractions: GPUs may be fractions; they are rounded up, since a worker here holds a GPU alone. unknown:
    allow empty durations (unknown) and empty numbers of GPUs (no GPUs).
    """

    begins: str
    submit: str
    gpus: str
    name: str = ""
    user: str = ""
    group: str = ""
    duration: str = ""
    start: str = ""
    end: str = ""
    gpu_share: str = ""
    workers: str = ""
    state: str = ""
    gpu_type: str = ""
    service_class: str = ""
    model: str = ""
    batch_size: str = ""
    metric: str = ""
    stop: str = ""
    optional: tuple[str, ...] = ()
    dates: bool | None = False
    rebase: bool = True
    origin: str = ""
    hours_from_utc: int | None = None
    identified: bool = True
    fractions: bool = False
    unknown: bool = True

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that the file must have."""
        first = (self.name, self.user, self.group, self.model, self.gpus, self.gpu_share, self.submit, self.start)
        more = (self.end, self.duration, self.workers, self.state, self.gpu_type, self.service_class)
        columns = (*first, *more, self.batch_size, self.metric, self.stop)
        return tuple(column for column in columns if column and column not in self.optional)


TABLES: Mapping[str, Table] = {
    "acme": Table(  # trace_seren.csv, trace_kalos.csv
        begins="job_id,user,node_num,gpu_num",
        name="job_id",
        user="user",
        group="type",  # of the workload, such as Pretrain
        gpus="gpu_num",
        submit="submit_time",
        start="start_time",
        end="end_time",
        duration="duration",  # in Kalos with the time in the queue
        state="state",
        optional=("state",),
        dates=True,
        hours_from_utc=8,
    ),
    "helios": Table(  # cluster_log.csv
        begins="job_id,user,vc,gpu_num",
        name="job_id",
        user="user",
        group="vc",
        gpus="gpu_num",
        submit="submit_time",
        start="start_time",
        duration="duration",
        state="state",
        optional=("state",),
        dates=True,
    ),
    "microsoft": Table(  # cluster*.csv of elasticflow-traces
        begins="job_id,submission_time",
        gpus="num_gpu",  # jobs go by their lines: the identifiers were drawn at publication
        submit="submission_time",
        duration="duration",
        model="model_name",  # this column and the next are in elasticflow-traces.tar.gz alone, drawn at random
        batch_size="batch_size",
        optional=("model_name", "batch_size"),
        origin="2021-03-04",  # the beginning of the collection; its time zone is not stated
        unknown=False,
    ),
    "openb": Table(  # openb_pod_list_*.csv
        begins="name,cpu_milli,memory_mib,num_gpu",
        name="name",
        group="qos",
        gpus="num_gpu",
        gpu_share="gpu_milli",
        submit="creation_time",
        start="scheduled_time",
        end="deletion_time",  # of a running pod, the end of the recording
        state="pod_phase",
        gpu_type="gpu_spec",  # allowed types, separated by |
        optional=("pod_phase", "gpu_spec"),
    ),
    "pai": Table(  # pai_job_no_estimate_100K.csv
        begins="job_id,num_inst,submit_time",
        name="job_id",
        user="user",
        gpus="num_gpu",  # of each instance
        workers="num_inst",
        gpu_type="gpu_type",
        submit="submit_time",
        duration="duration",
        optional=("gpu_type",),
        fractions=True,
    ),
    "philly_csv": Table(
        begins="timestamp,duration,num_gpus",
        group="cluster",
        gpus="num_gpus",
        submit="timestamp",
        duration="duration",
        dates=True,
        identified=False,
        unknown=False,
    ),
    "pollux": Table(
        begins="name,time,application",
        name="name",
        submit="time",
        model="application",
        gpus="num_replicas",
        batch_size="batch_size",
        metric="metric",  # this column and the next are RLPTO's additions
        stop="stop",  # gain/over/after
        optional=("batch_size", "metric", "stop"),
        rebase=False,
        unknown=False,
    ),
    "spot": Table(  # job_info_df.csv of cluster-trace-v2026-spot-gpu
        begins="job_name,organization,gpu_model",
        name="job_name",
        group="organization",
        gpus="gpu_request",  # of each worker
        workers="worker_num",
        gpu_type="gpu_model",
        service_class="job_type",  # HP or Spot
        submit="submit_time",
        duration="duration",
        fractions=True,
    ),
}
