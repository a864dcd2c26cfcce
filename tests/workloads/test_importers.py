import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.io.errors import TraceError
from rlpto.workloads.importers import detect_format, import_trace
from rlpto.workloads.importers.base import NEVER_RAN

from . import importers_data as data

SAMPLES = {
    "philly": data.PHILLY,
    "philly_csv": data.PHILLY_CSV,
    "helios": data.HELIOS,
    "pai": data.PAI,
    "pai_tasks": data.PAI_TASKS,
    "microsoft": data.MICROSOFT,
    "openb": data.OPENB,
    "acme": data.KALOS,
    "swf": data.SWF,
    "pollux": data.POLLUX,
    "spot": data.SPOT,
    "sacct": data.SACCT,
}


@pytest.fixture
def file(tmp_path):
    def write(text: str, name: str = "trace.txt") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


READ = [
    ("philly", data.PHILLY, [16, 1, 2], [74 + 3600, np.nan, 60], [0, 501, 561], "2017-10-07 01:11:39", (1, [62])),
    (
        *("philly_csv", data.PHILLY_CSV, [2, 8, 1], [10, 2951, 66]),
        *([0, 540_783, 6 * 86_400 + 7 * 3600 + 115], "2017-10-03 00:00:00", (0, [])),
    ),
    ("helios", data.HELIOS, [1, 4], [36_848, 249], [0, 26], "2020-06-09 18:41:01", (1, [5])),
    ("pai", data.PAI, [1, 4], [1200, 30], [0, 60], None, (1, [])),  # shares of a GPU are rounded up
    # 5 x 25 % + 100 % = 2.25 GPUs; the clock is that of China.
    *(
        ("pai_tasks", header + data.PAI_TASKS, [3, 1, 2], [200, 38, np.nan], [0, 52, 290], "1970-01-21 11:05:10", left)
        for header, left in (("", (1, [6])), (data.PAI_TASKS_HEADER, (1, [7])))
    ),
    (
        *("microsoft", data.MICROSOFT, [16, 1, 8], [288_476, 292_893, 311_900]),
        *([0, 3, 70], "2021-03-04 01:36:50", (0, [])),
    ),
    (
        *("openb", data.OPENB, [1, 1, 8], [np.nan, np.nan, 62]),  # two were running when the recording ended
        *([0, 427_061, 10_019_980], None, (1, [5])),
    ),
    # The clusters' clock, and the time that jobs ran.
    ("acme", data.KALOS, [64, 8], [8, 60], [0, 1680], "2023-05-17 19:00:58", (1, [4])),
    ("acme", data.SEREN, [8], [117], [0], "2023-03-01 00:18:22", (0, [])),
    ("swf", data.SWF, [128, 8], [5732, 60], [0, 700], "2006-01-01 00:00:24", (1, [6])),  # Paris is ahead of UTC
    ("spot", data.SPOT, [1, 16, 2], [2_764_799, 41_060, 71_718], [0, 9_589_663, 9_589_663], None, (1, [])),
]
"""Formats, files, and what is read: GPUs, durations, submissions, the origin, jobs without GPUs and lines left out."""


@pytest.mark.parametrize(("name", "text", "gpus", "duration", "submit", "origin", "left_out"), READ)
def test_a_file_is_read(name, text, gpus, duration, submit, origin, left_out, file) -> None:
    result = import_trace(name, file(text))
    assert result.trace.gpus.tolist() == gpus
    np.testing.assert_array_equal(result.trace.duration, duration)
    assert result.trace.submit_time.tolist() == submit
    assert result.trace.origin == (None if origin is None else pd.Timestamp(origin))
    assert (result.cpu_jobs, list(result.skipped)) == (left_out[0], [(line, NEVER_RAN) for line in left_out[1]])


def test_names_users_and_groups_are_kept(file) -> None:
    philly, helios = (import_trace(name, file(SAMPLES[name])).trace for name in ("philly", "helios"))
    assert philly.texts("name") == ["application_1_retried", "application_3_running", "application_5_gap"]
    assert (philly.texts("group")[0], philly.texts("user")[0]) == ("ee9e8c", "ce2f4c")
    assert (helios.texts("name"), helios.texts("group")) == (["1425511", "1425512"], ["vcJkd", "vchbv"])


def test_microsoft_knows_models_and_batch_sizes_of_jobs_that_were_used_in_a_study(file) -> None:
    used = file(data.MICROSOFT_USED)
    trace = import_trace(detect_format(used), used).trace
    assert (trace.gpus.tolist(), trace.duration.tolist()) == ([4], [3890.0])
    assert (trace.texts("model"), trace.integers("batch_size").tolist()) == (["bert"], [64])
    with pytest.raises(TraceError, match="column duration missing, expected a header with num_gpu,submission_time,dur"):
        import_trace("microsoft", file(data.MICROSOFT_USED.replace("duration", "gpu_type")))


@pytest.mark.parametrize("zone", ["Nowhere/Else", "a" * 5000, "../etc", "Europe"])
def test_a_time_zone_that_there_is_not_counts_as_none(zone: str, file) -> None:
    result = import_trace("swf", file(data.SWF.replace("Europe/Paris", zone)))
    assert result.trace.origin == import_trace("swf", file(data.SWF.replace("; TimeZoneString", ";"))).trace.origin


def test_pollux_keeps_its_own_second_zero(file) -> None:
    trace = import_trace("pollux", file(data.POLLUX)).trace
    assert trace.submit_time.tolist() == [107.0, 110.0, 135.0]
    assert trace.texts("model") == ["cifar10", "deepspeech2", "ncf"]
    assert trace.integers("batch_size").tolist() == [2048, 320, 32768]
    assert np.isnan(trace.duration).all()
    sia = "name,time,application,num_replicas,requested_num_replicas,category\nbert-0,87.66,bert,4,4,medium\n"
    trace = import_trace("pollux", file(sia)).trace
    assert trace.integers("batch_size").tolist() == [0]
    assert trace.submit_time.tolist() == [87.66]
    ours = "name,time,application,num_replicas,metric\na,0,bert,4, throughput\nb,1,bert,4,\n"
    assert import_trace("pollux", file(ours)).trace.texts("metric") == ["throughput", ""]
    with pytest.raises(TraceError, match=r":3: metric 'speed', expected one of goodput, throughput, efficiency"):
        import_trace("pollux", file(ours.replace("4,\n", "4,speed\n")))
    stops = "name,time,application,num_replicas,stop\na,0,bert,4, 0.001/0.05\nb,1,bert,4,\n"
    assert import_trace("pollux", file(stops)).trace.texts("stop") == ["0.001/0.05", ""]
    with pytest.raises(TraceError, match=r":3: stop '0.1/7', expected gain/over or gain/over/after"):
        import_trace("pollux", file(stops.replace("4,\n", "4,0.1/7\n")))


@pytest.mark.parametrize("name", SAMPLES)
def test_formats_are_told_apart_also_compressed(name, tmp_path, file) -> None:
    plain = file(SAMPLES[name])
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(SAMPLES[name].encode()))
    assert detect_format(plain) == detect_format(packed) == name
    pd.testing.assert_frame_equal(import_trace(name, plain).trace.jobs, import_trace(name, packed).trace.jobs)


@pytest.mark.parametrize("name", ["philly", "pai_tasks", "helios", "swf"])
def test_line_endings_and_blank_lines_make_no_difference(name, tmp_path, file) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbf" + SAMPLES[name].replace("\n", "\r\n").encode() + b"\r\n\r\n")
    expected = import_trace(name, file(SAMPLES[name])).trace.jobs
    pd.testing.assert_frame_equal(import_trace(name, path).trace.jobs, expected)


BROKEN = [
    ("philly_csv", "2017-10-09 07:01:55,66.0,1,66.0,11cb48", "2017-10-09 07:01:55,66.0,1", 2, "3 fields, expected 5"),
    ("philly_csv", "07:01:55,66.0", "07:01:55,-66.0", 2, "duration '-66.0', expected a number, 0 or more"),
    ("philly_csv", "2951.0,8,", "2951.0,eight,", 3, "num_gpus 'eight', expected an integer"),
    ("philly_csv", "6c71a0", '"6c71a0', 4, "quotes that do not close, expected 5 fields"),
    ("helios", "vchbv,4,16", "vchbv,-4,16", 3, "gpu_num '-4', expected an integer, 0 or more"),
    ("helios", "2020-06-09 18:41:27,2020", "yesterday,2020", 3, "submit_time 'yesterday', expected a date"),
    ("pai", "7592,2,160,", "7592,2,,", 3, "submit_time '', expected a number"),
    ("pai_tasks", "4f057009,", ",", 1, "job_name is empty, expected the name of a job"),
    ("pai_tasks", "1739200.0", "1739100.0", 1, "end_time '1739100.0', expected start_time"),
    ("philly_csv", "07:01:55,66.0", "07:01:55,1e11", 2, "duration '1e11', expected a number, 0 to 10,000,000,000"),
    ("microsoft", "5813,292893", "5813,long", 3, "duration 'long', expected a number, 0 or more"),
    ("openb", "10020052,10019990", "10019980,10019990", 6, "deletion_time '10019980', expected scheduled_time '100199"),
    ("acme", "2023-05-17 11:01:16+00:00,2023", "2023-05-17 10:01:16+00:00,2023", 2, "end_time '2023-05-17 10:01:16"),
    ("swf", "  700     10     60", "  700     10     sixty", 7, "run time 'sixty', expected a number, -1 or more"),
    ("pollux", "ncf-2,135", "ncf-2,-135", 4, "time '-135', expected a number, 0 or more"),
    ("pollux", "110,deepspeech2", "110,", 3, "application is empty, expected the name of a model"),
    # What no trace can hold.
    ("philly_csv", "2951.0,8,", "2951.0,2000000,", 3, "gpus 2000000, expected at most 1000000"),
    ("philly_csv", "2951.0,8,", "1e18,8,", 3, "duration '1e18', expected a number"),
    ("philly_csv", "2017-10-03", "9999-10-03", 4, "timestamp '9999-10-03 00:00:00', expected a date as 2017-10-03"),
    ("philly_csv", "2017-10-03", "1971-10-03", 4, "submitted more than 20 years from other jobs"),
    ("helios", "2020-06-09 18:41:27,2020", "2262-06-09 18:41:27,2020", 3, "submit_time '2262-06-09"),
    ("pollux", "ncf-2,135", "ncf-2,1e12", 4, "time '1e12', expected a number"),
]


@pytest.mark.parametrize(("name", "whole", "broken", "line", "reason"), BROKEN)
def test_a_broken_line_is_named_and_can_be_skipped(name, whole, broken, line, reason, file) -> None:
    text = SAMPLES[name].replace(whole, broken, 1)
    assert text != SAMPLES[name]
    path = file(text)
    with pytest.raises(TraceError) as caught:
        import_trace(name, path)
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: {reason}")
    assert "\n" not in message
    result = import_trace(name, path, skip_bad_lines=True)
    bad = [entry for entry in result.skipped if entry.reason != NEVER_RAN]
    assert [entry.line for entry in bad] == [line]
    assert len(result.trace) >= 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda jobs: jobs[0].pop("attempts"), "key attempts missing"),
        (lambda jobs: jobs[0].update(attempts=[{"detail": 3}]), "detail '3', expected a list of machines"),
        (lambda jobs: jobs[0].update(submitted_time="soon"), "submitted_time 'soon', expected a date"),
        (
            lambda jobs: jobs[0]["attempts"][0].update(end_time="2016-01-01 00:00:00"),
            "end_time '2016-01-01 00:00:00', expected start_time",
        ),
        (lambda jobs: jobs.__setitem__(0, 5), "record '5', expected an object"),
    ],
)
def test_a_broken_philly_record_is_named_by_its_line(change, reason, file) -> None:
    jobs = json.loads(data.PHILLY)
    change(jobs)
    path = file(json.dumps([data.PHILLY_JOBS[1], *jobs], indent=1))
    line = 2 + len(json.dumps([data.PHILLY_JOBS[1]], indent=1).splitlines()) - 2
    with pytest.raises(TraceError) as caught:
        import_trace("philly", path)
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    result = import_trace("philly", path, skip_bad_lines=True)
    assert result.trace.texts("name") == ["application_3_running", "application_5_gap"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[\n{"jobid": "a",\n"vc" 3}]', ":3: not valid JSON"),
        ('{"jobid": "a"}', ":1: begins with .*, expected a JSON list of jobs"),
        ('[\n{"jobid": "a"}\n{"jobid": "b"}]', ":3: .*expected a comma or the end"),
        ('[{"jobid": "a"},', ":1: not valid JSON"),
        ('[{"jobid": "a"}]\n[{"jobid": "b"}]', ":2: .* after the list of jobs, expected the end of the file"),
        ("[]", "an empty list"),
    ],
)
def test_broken_json_is_named_by_its_line(text, reason, file) -> None:
    with pytest.raises(TraceError, match=reason):
        import_trace("philly", file(text), skip_bad_lines=True)


_GPU_COLUMNS = ("num_gpus", "gpu_num", "num_gpu", "num_replicas", "gpu_request")


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in ("philly", "pai_tasks", "swf", "sacct")])
def test_a_missing_column_is_named(name, file) -> None:
    header, _, rest = SAMPLES[name].partition("\n")
    gpus = next(column for column in header.split(",") if column in _GPU_COLUMNS)
    path = file(header.replace(gpus, "other", 1) + "\n" + rest)
    with pytest.raises(TraceError, match=f":1: column {gpus} missing, expected a header with"):
        import_trace(name, path)


def test_unreadable_files_give_one_clear_line(tmp_path) -> None:
    broken = gzip.compress(b"x" * 10_000, mtime=0)[:-9]
    for content, reason in ((b" \n\n", "the file is empty"), (broken, "broken gzip data"), (b"a,b\n\0", "UTF-8")):
        (tmp_path / "f").write_bytes(content)
        with pytest.raises(TraceError, match=f"f:.*{reason}"):
            import_trace("philly", tmp_path / "f")


def test_a_file_without_gpu_jobs_says_what_it_holds(file) -> None:
    text = data.PHILLY_CSV.replace("66.0,1,", "66.0,0,").replace("2951.0,8,", "2951.0,0,").replace("10.0,2,", "-1,2,")
    with pytest.raises(TraceError, match=r"no GPU job in the file \(2 CPU jobs, 0 that never ran, 1 broken lines\)"):
        import_trace("philly_csv", file(text), skip_bad_lines=True)


def test_unknown_formats_get_a_suggestion_and_quoted_fields_are_understood(file) -> None:
    with pytest.raises(TraceError, match="unknown trace format 'phily', did you mean philly"):
        import_trace("phily", file(data.PHILLY))
    with pytest.raises(TraceError, match=r"no known trace format, expected one of acme, .*; a csv of your own needs"):
        detect_format(file("a,b\n1,2\n"))
    quoted = "\n".join(",".join(f'"{field}"' for field in line.split(",")) for line in data.HELIOS.splitlines())
    quoted = quoted.replace('"vchbv"', '"vc,hbv"')
    trace = import_trace("helios", file(quoted)).trace
    assert trace.texts("group") == ["vcJkd", "vc,hbv"]


@pytest.mark.parametrize(
    ("name", "whole", "broken", "line", "reason"),
    [
        ("philly_csv", "gpu_time", "num_gpus", 1, "column num_gpus given twice"),
        ("swf", "UnixStartTime: ", "UnixStartTime: 99999999999", 2, "UnixStartTime 99999999999"),
    ],
)
def test_what_is_wrong_with_all_of_a_file_is_named_by_its_line(name, whole, broken, line, reason, file) -> None:
    with pytest.raises(TraceError, match=rf":{line}: {reason}"):
        import_trace(name, file(SAMPLES[name].replace(whole, broken, 1)), skip_bad_lines=True)
