"""Small files in the genuine formats: what is in them, and how one line of them is broken."""

import json

PHILLY_CSV = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,8,23608.0,6214e9
2017-10-03 00:00:00,10.0,2,20.0,6c71a0
"""

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vcpDC,0,1,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
1425514,uzqls,vcpDC,8,1,1,CANCELLED,2020-06-09 18:41:30,None,2020-06-09 18:42:00,0,30
"""

PAI = """\
job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user
7591,1,100,6,0.5,MISC,1200,ae8ed1
7592,2,160,12,2,T4,30.0,ae8ed1
7593,1,161,4,0,CPU,99,b3a2c4
"""

PAI_TASKS = """\
4f057009,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC
77aa0011,ps,2.0,Terminated,1739100.0,1739300.0,400.0,10.0,,
77aa0011,worker,5.0,Terminated,1739110.0,1739290.0,400.0,10.0,25.0,T4
77aa0011,evaluator,1.0,Terminated,1739120.0,1739310.0,400.0,10.0,100.0,T4
88bb0022,worker,1.0,Running,1739400.0,,400.0,10.0,200.0,V100
99cc0033,worker,1.0,Waiting,,,400.0,10.0,100.0,V100
"""
PAI_TASKS_HEADER = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"

MICROSOFT = """\
job_id,submission_time,duration,num_gpu
c9c620ea-4336-c1a9-8abe-e26bd13076b8,5810,288476,16
be631d51-a07b-5693-739f-f4379ec5d0cc,5813,292893,1
492ce47f-0925-1906-bc3c-7b65ba6ecbfe,5880,311900,8
"""
MICROSOFT_USED = """\
job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration
6b2d9ccc-6279-403c-e1a2-cfe7810d5c57,16566,40285,bert,21347,64,4,3890
"""

OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0
openb-pod-0001,6000,12288,1,460,V100M16|V100M32,LS,Running,427061,12902960,427070
openb-pod-0002,4152,10600,0,0,,BE,Failed,10019860,10024488,10019861
openb-pod-0003,18708,64512,8,1000,,LS,Pending,10019975,10020052,
openb-pod-0004,18708,64512,8,1000,,Burstable,Succeeded,10019980,10020052,10019990
"""

KALOS = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,\
fail_time,stop_time,duration,queue,gpu_time
dlctk696s0jbvitv,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,\
2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
dlc1t2ypl09b8qtp,uf794,1,0,96,100,,Other,COMPLETED,2023-05-17 11:28:42+00:00,2023-05-17 11:28:54+00:00,\
2023-05-17 11:30:04+00:00,,,82,12.0,0.0
dlc1t2ypl09b8qtq,uf794,8,64,960,1000,100.0,Pretrain,CANCELLED,2023-05-17 11:28:42+00:00,,,,,0,,0
dlc1t2ypl09b8qtr,uf795,1,8,96,100,,Eval,COMPLETED,2023-05-17 11:28:58+00:00,2023-05-17 11:29:00+00:00,\
2023-05-17 11:30:00+00:00,,,62,2.0,480.0
"""

SEREN = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,\
117,32,936.0
"""

SWF = """\
; Version: 2.2
; UnixStartTime: 1136070024
; TimeZoneString: Europe/Paris
;
    1        0     35   5732   128     -1    -1   128  -1    -1  1   3   1   1   2 -1 -1 -1
    2      300     -1     -1    -1     -1    -1    64  -1    -1  5   4   1   1   1 -1 -1 -1
    3      700     10     60     8     -1    -1    -1  -1    -1  1  -1   1   1  -1 -1 -1 -1
    4      900     10     60    -1     -1    -1    -1  -1    -1  1  -1   1   1  -1 -1 -1 -1
"""

POLLUX = """\
name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
deepspeech2-1,110,deepspeech2,6,320
ncf-2,135,ncf,1,32768
"""


SPOT = """\
job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
239255,13,A10,20,1,1,0,2764799,HP
437260,57,A100-SXM4-80GB,15,1,16,9589663,41060,Spot
437261,57,A100-SXM4-80GB,15,0.5,3,9589663,71718,Spot
437262,57,A10,15,0,3,9589663,71718,HP
"""

SACCT = """\
JobID|User|Partition|State|Submit|Start|End|Elapsed|Timelimit|AllocTRES
70|ann|gpu|COMPLETED|2025-06-02T08:00:00|2025-06-02T08:00:30|2025-06-03T09:00:31|1-01:00:01|UNLIMITED|billing=8,gres/gpu:a100=4,gres/gpu=4
70.batch|||COMPLETED|2025-06-02T08:00:30|2025-06-02T08:00:30|2025-06-03T09:00:31|1-01:00:01||cpu=8
70.0|||COMPLETED|2025-06-02T08:00:30|2025-06-02T08:00:30|2025-06-03T09:00:31|1-01:00:01||cpu=8
71_[2-9%2]|bo|gpu|PENDING|2025-06-02T08:01:00|Unknown|Unknown|00:00:00|12:00:00|
71_1|bo|gpu|RUNNING|2025-06-02T08:01:00|2025-06-02T08:02:00|Unknown|00:30:00|12:00:00|gres/gpu=1
72+0|cy|gpu|TIMEOUT|2025-06-02T08:03:00|2025-06-02T08:04:00|2025-06-02T09:04:00|01:00:00|01:00:00|gres/gpu:v100=2
72+1|cy|cpu|TIMEOUT|2025-06-02T08:03:00|2025-06-02T08:04:00|2025-06-02T09:04:00|01:00:00|01:00:00|gres/gpu:v100=1,cpu=2
73|di|gpu|REQUEUED|2025-06-02T08:05:00|2025-06-02T08:05:00|2025-06-02T08:06:00|00:01:00|01:00:00|gres/gpu=2
73|di|gpu|CANCELLED by 1001|2025-06-02T08:06:01|2025-06-02T08:10:00|2025-06-02T08:15:00|00:05:00|01:00:00|gres/gpu=2
74|di|gpu|CANCELLED by 1001|2025-06-02T08:07:00|2025-06-02T08:09:00|2025-06-02T08:09:00|00:00:00|01:00:00|
75|di|cpu|COMPLETED|2025-06-02T08:07:00|2025-06-02T08:09:00|2025-06-02T08:19:00|00:10:00|01:00:00|cpu=4
"""


def philly_job(name: str, submitted: str, *attempts: tuple[str | None, str | None, list[int]]) -> dict[str, object]:
    """attempts: start, end, and GPUs by machine."""
    found = [
        {
            "start_time": start,
            "end_time": end,
            "detail": [{"ip": f"m{i}", "gpus": [f"gpu{k}" for k in range(gpus)]} for i, gpus in enumerate(machines)],
        }
        for start, end, machines in attempts
    ]
    job = {"status": "Pass", "vc": "ee9e8c", "jobid": name, "attempts": found}
    return job | {"submitted_time": submitted, "user": "ce2f4c"}


PHILLY_JOBS = [
    philly_job(
        *("application_1_retried", "2017-10-07 01:11:39"),
        ("2017-10-07 01:12:09", "2017-10-07 01:13:23", [8]),
        ("2017-10-07 01:13:30", "2017-10-07 02:13:30", [8, 8]),
    ),
    philly_job("application_2_never", "2017-10-07 01:00:00"),
    philly_job("application_3_running", "2017-10-07 01:20:00", ("2017-10-07 01:30:00", None, [1])),
    philly_job("application_4_cpu", "2017-10-07 01:20:00", ("2017-10-07 01:30:00", "2017-10-07 01:31:00", [])),
    philly_job(
        *("application_5_gap", "2017-10-07 01:21:00"),
        ("2017-10-07 01:30:00", None, [2]),
        ("2017-10-07 01:40:00", "2017-10-07 01:41:00", [2]),
    ),
]
PHILLY = json.dumps(PHILLY_JOBS, indent=1)
