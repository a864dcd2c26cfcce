"""Formats that are csv files with one job a line: what their columns are called, and what they mean.

Imports nothing heavy: the names of all formats are needed for `rlpto --help`. Reading is in `csvfile.py`.

Helios: Hu et al., "Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters", SC 2021.
Acme: Hu et al., "Characterization of Large Language Model Development in the Datacenter", NSDI 2024.
openb: Weng et al., "Beware of Fragmentation", ATC 2023. PAI: Weng et al., "MLaaS in the Wild", NSDI 2022.
Pollux and Sia: the workloads of the artifacts of OSDI 2021 and SOSP 2023.
Microsoft 2021: Gu et al., "ElasticFlow", ASPLOS 2023; github.com/microsoft/elasticflow-traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A format. All but `description`, `begins` and the flags are names of columns; empty: there is none.

    begins: start of the header line. name: of a job; none: jobs are called by their lines. duration: in seconds. start,
    end: a job has run from the one to the other; where one of them is missing, `duration` counts. A job without a start
    never ran. optional: columns that may be missing. gpu_share: thousandths of each of `gpus`. model, batch_size,
    metric, stop: as in `rlpto.workloads.trace.Trace`. dates: times are dates, else seconds. rebase: the first
    submission is second 0, else the file's own. origin: local date of the file's own second 0. hours_from_utc: the
    clusters' own clock, for dates with an offset. fractions: GPUs may be fractions; they are rounded up, since a worker
    here holds a GPU alone. unknown: durations and numbers of GPUs may be empty: not known, and none.
    """

    description: str
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
    model: str = ""
    batch_size: str = ""
    metric: str = ""
    stop: str = ""
    optional: tuple[str, ...] = ()
    dates: bool = False
    rebase: bool = True
    origin: str = ""
    hours_from_utc: int = 0
    fractions: bool = False
    unknown: bool = True

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that must be there."""
        described = (self.name, self.user, self.group, self.model, self.gpus, self.gpu_share)
        columns = (*described, self.submit, self.start, self.end, self.duration)
        return tuple(column for column in columns if column and column not in self.optional)


TABLES: Mapping[str, Table] = {
    "acme": Table(
        "Shanghai AI Lab Acme trace_seren.csv, trace_kalos.csv",
        begins="job_id,user,node_num,gpu_num",
        name="job_id",
        user="user",
        group="type",  # of the workload, such as Pretrain
        gpus="gpu_num",
        submit="submit_time",
        start="start_time",
        end="end_time",
        duration="duration",  # in Kalos with the time in the queue
        dates=True,
        hours_from_utc=8,
    ),
    "helios": Table(
        "SenseTime Helios cluster_log.csv",
        begins="job_id,user,vc,gpu_num",
        name="job_id",
        user="user",
        group="vc",
        gpus="gpu_num",
        submit="submit_time",
        start="start_time",
        duration="duration",
        dates=True,
    ),
    "microsoft": Table(
        "Microsoft 2021 cluster*.csv of elasticflow-traces (job_id,submission_time,duration,num_gpu)",
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
    "openb": Table(
        "Alibaba openb 2023 openb_pod_list_*.csv",
        begins="name,cpu_milli,memory_mib,num_gpu",
        name="name",
        group="qos",
        gpus="num_gpu",
        gpu_share="gpu_milli",
        submit="creation_time",
        start="scheduled_time",
        end="deletion_time",
    ),
    "pai": Table(
        "Alibaba PAI 2020 pai_job_no_estimate_100K.csv",
        begins="job_id,num_inst,submit_time",
        name="job_id",
        user="user",
        group="gpu_type",
        gpus="num_gpu",  # of the whole job: its instances share them
        submit="submit_time",
        duration="duration",
        optional=("gpu_type",),
        fractions=True,
    ),
    "philly_csv": Table(
        "Microsoft Philly as csv (timestamp,duration,num_gpus,gpu_time,cluster)",
        begins="timestamp,duration,num_gpus",
        group="cluster",
        gpus="num_gpus",
        submit="timestamp",
        duration="duration",
        dates=True,
        unknown=False,
    ),
    "pollux": Table(
        "Pollux and Sia workload csv (name,time,application,num_replicas,batch_size)",
        begins="name,time,application",
        name="name",
        submit="time",
        model="application",
        gpus="num_replicas",
        batch_size="batch_size",
        metric="metric",  # this column and the next are ours
        stop="stop",  # gain/over/after
        optional=("batch_size", "metric", "stop"),
        rebase=False,
        unknown=False,
    ),
}
