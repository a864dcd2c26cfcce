"""What real files also hold: repeats, pieces, clocks that change, other separators, columns of one's own."""

import bz2
import json
import lzma
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.io.errors import ConfigError, RlptoError, TraceError
from rlpto.workloads.describe import tables
from rlpto.workloads.importers import detect_format, import_trace
from rlpto.workloads.importers.base import ImportResult
from rlpto.workloads.importers.table import COLUMNS

from . import importers_data as data


@pytest.fixture
def put(tmp_path):
    def write(text: str | bytes, name: str = "log.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def read(path: Path, name: str = "", skip: bool = False, columns: str | None = None) -> ImportResult:
    return import_trace(name or detect_format(path), path, skip, columns)


SWF_LINE = "{job} {submit} 5 {run} 4 -1 -1 4 -1 -1 {status} 3 1 -1 1 1 -1 -1\n"


def swf(*jobs: tuple[int, int, int, int]) -> str:
    fields = ("job", "submit", "run", "status")
    return "; made up\n" + "".join(SWF_LINE.format(**dict(zip(fields, job, strict=True))) for job in jobs)


def test_pieces_of_a_job_in_swf_are_not_jobs_and_need_no_submit_time(put) -> None:
    text = swf((1, 0, 700, 0), (1, 0, 300, 2), (1, -1, 400, 4), (2, 50, 60, 5), (3, 60, 10, -1))
    result = read(put(text))
    assert result.trace.texts("name") == ["1", "2", "3"]
    assert result.reasons() == {"a piece of a job (status 2, 3, 4)": 2}
    with pytest.raises(TraceError, match=r"0 that never ran, 1 x a piece of a job .*expected at least one"):
        read(put(swf((1, 0, 300, 3))))


def test_jobs_in_swf_that_completed_at_once_stay_and_those_that_never_ran_go(put) -> None:
    result = read(put(swf((1, 0, 0, 1), (2, 1, 0, 5), (3, 2, -1, 1), (4, 3, 0, 0))))
    assert (result.trace.texts("name"), result.trace.duration.tolist()) == (["1"], [0.0])
    assert result.reasons() == {"never ran": 3}


@pytest.mark.parametrize("name", ["helios", "philly", "swf", "pai_tasks", "sacct", "spot"])
def test_rows_that_repeat_exactly_are_imported_once_and_counted(name, put) -> None:
    text = getattr(data, name.upper())
    body = text if name == "pai_tasks" else text.partition("\n")[2]
    twice = json.dumps(data.PHILLY_JOBS * 2) if name == "philly" else text + "".join(body)
    once, again = read(put(text), name), read(put(twice), name)
    pd.testing.assert_frame_equal(again.trace.jobs, once.trace.jobs)
    assert again.reasons()["the same row again"] >= len(once.trace)


def test_rows_without_names_of_jobs_are_kept_and_noted_and_so_are_names_that_repeat(put) -> None:
    row = data.PHILLY_CSV.splitlines()[2] + "\n"
    assert read(put(data.PHILLY_CSV + row)).notes == {"a row that repeats exactly, kept: no column names jobs": 1}
    result = read(put(data.HELIOS.replace("1425512", "1425511")))
    assert result.trace.texts("name") == ["1425511", "1425511#2"]
    assert result.notes == {"the name of an earlier job: #2, #3, ... added": 1}


@pytest.mark.parametrize("separator", [";", "\t", "|"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_other_separators_are_read(separator, quote, put) -> None:
    lines = [separator.join(f"{quote}{field}{quote}" for field in line.split(",")) for line in data.HELIOS.splitlines()]
    result = read(put("\n".join(lines)))
    pd.testing.assert_frame_equal(result.trace.jobs, read(put(data.HELIOS)).trace.jobs)


def test_files_of_spreadsheets_are_read(put) -> None:
    """They have spaces before quotes, and rows of empty cells."""
    lines = [", ".join(f'"{field}"' for field in line.split(",")) for line in data.HELIOS.splitlines()]
    result = read(put("\n".join([*lines, "," * lines[0].count(",")])))
    pd.testing.assert_frame_equal(result.trace.jobs, read(put(data.HELIOS)).trace.jobs)
    with pytest.raises(TraceError, match=r":3: column gpu_num missing"):
        read(put("\n\n" + data.HELIOS.replace("gpu_num", "other")), "helios")


def test_the_last_column_counts_also_in_files_of_windows(put) -> None:
    text = "JobID|Elapsed|AllocTRES|Submit|Start\n7|60|gres/gpu=2|2025-06-02T08:00:00|2025-06-02T08:00:30\n"
    assert read(put(text.replace("\n", "\r\n"))).trace.duration.tolist() == [60.0]


def test_jobs_without_names_are_named_after_their_lines(put) -> None:
    assert read(put(data.HELIOS.replace("1425511", ""))).trace.texts("name") == ["helios-2", "1425512"]
    start, end = "2017-10-07 01:12:09", "2017-10-07 01:13:23"
    jobs = [data.philly_job(name, "2017-10-07 01:11:39", (start, end, [1])) for name in ("", "half \udcff")]
    assert read(put(json.dumps(jobs))).trace.texts("name") == ["philly-1", "half ?"]


def test_a_record_with_several_faults_counts_once(put) -> None:
    wrong = ("soon", None, [1]), ("2016-01-01 00:00:00", None, [1])
    jobs = [data.philly_job("a", "2017-10-07 01:11:39", *wrong), data.PHILLY_JOBS[0]]
    assert list(read(put(json.dumps(jobs)), skip=True).reasons().values()) == [1]


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress])
def test_packed_files_are_read_under_any_name(pack, put) -> None:
    expected = read(put(data.PAI)).trace.jobs
    pd.testing.assert_frame_equal(read(put(pack(data.PAI.encode()), "log")).trace.jobs, expected)


HELIOS_LINE = "{name},u,v,1,1,1,COMPLETED,{submit},{start},{start},60,0\n"


def helios(*rows: tuple[str, str]) -> str:
    header = data.HELIOS.partition("\n")[0] + "\n"
    lines = (HELIOS_LINE.format(name=i, submit=submit, start=start) for i, (submit, start) in enumerate(rows))
    return header + "".join(lines)


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("2024-02-01T10:00:00", 0.0),
        ("2024-02-01 10:00:00.250", 0.25),
        ("2024-02-01 10:00", 0.0),
        ("2024-02-01", -36_000.0),
        ("2024-02", -36_000.0),
    ],
)
def test_dates_of_iso_8601_are_read(date, seconds, put) -> None:
    first = "2024-02-01 00:00:00"
    trace = read(put(helios((first, first), (date, date)))).trace
    assert trace.submit_time.tolist() == [0.0, 36_000.0 + seconds]
    assert trace.origin == pd.Timestamp(first)


def test_offsets_from_utc_that_differ_are_put_on_one_clock(put) -> None:
    dates = ("2024-02-01T10:00:00Z", "2024-02-01 11:01:00+0100", "2024-02-01T04:32:00-05:30")
    trace = read(put(helios(*((date, date) for date in dates)))).trace
    assert (trace.submit_time.tolist(), str(trace.origin)) == ([0.0, 60.0, 120.0], "2024-02-01 10:00:00")
    berlin = read(put(helios(("2024-02-01T10:00:00+01", "2024-02-01T10:00:00+01")))).trace
    assert str(berlin.origin) == "2024-02-01 10:00:00"  # the clock of all dates


@pytest.mark.parametrize("column", ["submit_time", "start_time"])
def test_an_offset_in_some_dates_only_is_refused_with_its_line(column, put) -> None:
    plain, aware = "2024-02-01 10:00:00", "2024-02-01 10:00:00+00:00"
    third = {"submit_time": aware, "start_time": aware, column: plain}
    path = put(helios((aware, aware), (third["submit_time"], third["start_time"])))
    with pytest.raises(TraceError, match=rf":3: {column} '{plain}' without an offset from UTC, unlike line 2"):
        read(path)
    assert list(read(path, skip=True).reasons().values()) == [1]


def test_what_began_before_it_was_submitted_is_refused_or_counted(put) -> None:
    path = put(helios(("2024-02-01 11:00:00", "2024-02-01 10:59:00"), ("2024-02-01 12:00:00", "2024-02-01 12:00:00")))
    with pytest.raises(TraceError, match=r":2: start_time '2024-02-01 10:59:00', expected submit_time '.*' or later"):
        read(path)
    result = read(path, skip=True)
    assert result.reasons() == {"start_time ..., expected submit_time ... or later": 1}
    assert len(result.trace) == 1


def test_an_hour_is_added_where_clocks_were_set_back_and_nowhere_else(put) -> None:
    night = data.philly_job("a", "2017-11-05 00:10:00", ("2017-11-05 01:50:00", "2017-11-05 01:05:00", [1]))
    result = read(put(json.dumps([night])))
    assert result.trace.duration.tolist() == [900.0]
    assert result.notes == {"clock set back between start_time and end_time: an hour added": 1}
    for before, after in (
        ("11-05 01:50", "11-05 00:40"),
        ("11-06 01:50", "11-06 01:05"),
        ("07-02 01:50", "07-02 01:05"),
    ):
        dates = (f"2017-{before}:00", f"2017-{after}:00", [1])
        with pytest.raises(TraceError, match=r":1: end_time '2017-.*', expected start_time '2017-.*' or later"):
            read(put(json.dumps([data.philly_job("a", "2017-05-01 00:00:00", dates)])))


def test_accounting_of_slurm_becomes_jobs(put) -> None:
    result = read(put(data.SACCT))
    jobs = result.trace.jobs
    assert jobs["name"].tolist() == ["70", "71_1", "72", "73"]
    assert jobs["gpus"].tolist() == [4, 1, 3, 2]
    np.testing.assert_array_equal(jobs["duration"], [90_001.0, np.nan, 3600.0, 360.0])
    assert jobs["submit_time"].tolist() == [0.0, 60.0, 180.0, 300.0]
    assert jobs["gpu_type"].tolist() == ["a100", "", "v100", ""]
    assert (jobs["user"].tolist(), set(jobs["group"])) == (["ann", "bo", "cy", "di"], {"gpu"})
    assert result.reasons() == {"a step of a job": 2, "never ran": 2}
    assert result.notes == {"a further run or component of a job: added to it": 2}
    assert (result.cpu_jobs, str(result.trace.origin)) == (1, "2025-06-02 08:00:00")


def test_accounting_of_slurm_separated_by_commas_is_read(put) -> None:
    expected = read(put(data.SACCT)).trace.jobs
    pd.testing.assert_frame_equal(read(put(data.SACCT.replace("|", ","))).trace.jobs, expected)
    quoted = "\n".join(",".join(f'"{field}"' for field in line.split("|")) for line in data.SACCT.splitlines())
    pd.testing.assert_frame_equal(read(put(quoted)).trace.jobs, expected)


def test_a_time_of_slurm_that_is_unlimited_is_unknown_and_no_number_of_gpus_is_overlooked(put) -> None:
    result = read(put(data.SACCT.replace("1-01:00:01", "UNLIMITED")))
    assert np.isnan(result.trace.duration[0])
    with pytest.raises(TraceError, match=r":2: gpus 444444444, expected at most 1000000"):
        read(put(data.SACCT.replace("gres/gpu=4", "gres/gpu=444444444")))


def test_another_separator_is_named(put) -> None:
    with pytest.raises(TraceError, match=r":1: column job_id missing, .* separated by , ; \| or tab"):
        read(put(data.HELIOS.replace(",", "^")), "helios")


def test_accounting_of_slurm_without_a_needed_column_is_refused(put) -> None:
    for column in ("AllocTRES", "Elapsed", "JobID"):
        with pytest.raises(TraceError, match=rf"log.csv:1: column {column} missing, expected .*JobID,Submit,Start"):
            read(put(data.SACCT.replace(column, "Other")), "sacct")
    asked = read(put(data.SACCT.replace("AllocTRES", "ReqTRES")), "sacct")
    assert asked.reasons()["never ran"] == 2


OWN = """\
Id;Queue;Submit;Began;Ended;Seconds;Cards;TRES;Kind
a;q;2025-01-01T00:00:00;2025-01-01T00:01:00;2025-01-01T01:01:00;1-00:00:00;0.5;gres/gpu:h100=2;h
b;q;2025-01-01T00:00:10;2025-01-01T00:01:10;;90;2;gres/gpu=3;
"""


def test_a_table_of_ones_own_is_read_by_the_names_of_its_columns(put) -> None:
    path = put(OWN)
    by_cards = read(path, "table", columns="submit=Submit,duration=Seconds,gpus=Cards,name=Id,gpu_type=Kind").trace
    assert (by_cards.duration.tolist(), by_cards.gpus.tolist()) == ([86_400.0, 90.0], [1, 2])
    assert (by_cards.texts("name"), by_cards.texts("gpu_type")) == (["a", "b"], ["h", ""])
    names = put("submit: Submit\nstart: Began\nend: Ended\ngpus: TRES.gpu\ngpu_type: TRES.gpu_type\n", "names.yaml")
    by_yaml = read(path, "table", columns=str(names)).trace
    np.testing.assert_array_equal(by_yaml.duration, [3600.0, np.nan])
    assert (by_yaml.gpus.tolist(), by_yaml.texts("gpu_type")) == ([2, 3], ["h100", ""])
    assert str(by_yaml.origin) == "2025-01-01 00:00:00"


def test_days_without_hyphens_are_not_taken_for_seconds(put) -> None:
    with pytest.raises(TraceError, match=r"column t: 20240101 may be a date or seconds; expected dates as 2024-01-31"):
        read(put("t,g\n20240101,1\n20240102,1\n"), "table", columns="submit=t,gpus=g")
    seconds = read(put("t,g\n20240101,1\n20249999,1\n"), "table", columns="submit=t,gpus=g").trace
    assert seconds.submit_time.tolist() == [0.0, 9898.0]


def test_times_in_seconds_of_ones_own_are_those_since_1970_if_they_are_large(put) -> None:
    for first, origin in ((1_735_689_600, "2025-01-01 00:00:00"), (5, None)):
        trace = read(
            put(f"t,g,d\n{first},1,60\n{first + 7},1,1:00:00\n"), "table", columns="submit=t,gpus=g,duration=d"
        )
        assert (trace.trace.submit_time.tolist(), trace.trace.duration.tolist()) == ([0.0, 7.0], [60.0, 3600.0])
        assert trace.trace.origin == (None if origin is None else pd.Timestamp(origin))
    unknown = put("t,g,d\nnull,1,60\nnull,1,70\n1.7356896e9,1,80\n")
    found = read(unknown, "table", skip=True, columns="submit=t,gpus=g,duration=d").trace
    assert (found.duration.tolist(), str(found.origin)) == ([80.0], "2025-01-01 00:00:00")
    with pytest.raises(TraceError, match=r":2: submitted after 2100, expected a time from 1970 to 2100"):
        read(put("t,g\n9900000000,1\n"), "table", columns="submit=t,gpus=g")
    assert read(put("t,g\n5,1e-12\n"), "table", columns="submit=t,gpus=g").trace.gpus.tolist() == [1]
    with pytest.raises(TraceError, match=r":2: d '1:00:99', expected a number, 0 or more, or \[D-\]HH:MM:SS"):
        read(put("t,g,d\n5,1,1:00:99\n"), "table", columns="submit=t,gpus=g,duration=d")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("submit=Submit", "--columns: gpus missing, expected"),
        ("gpus=Cards,submit", "--columns: 'submit' is no pair"),
        ("gpus=Cards,gpus=Cards", "--columns: 'gpus=Cards' is no pair, or the second"),
        ("gpus=Cards,submit=Submit,ends=Ended", "--columns: 'ends' means nothing here, did you mean end"),
        ("gpus=Cards,submit=Submit,end=Ended", "--columns: start missing"),
        ("gpus=Cards,submit=Submited", "log.csv:1: column Submited missing, expected a header with Cards,Submited"),
        ("gpus=Cards.gpu_typ,submit=Submit", "log.csv:1: column Cards.gpu_typ missing"),
        ("", "--columns: missing, expected"),
    ],
)
def test_names_of_columns_are_checked(columns, reason, put) -> None:
    with pytest.raises(RlptoError) as caught:
        read(put(OWN), "table", columns=columns)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_of_columns_belong_to_a_table_and_their_file_is_checked(put) -> None:
    with pytest.raises(TraceError, match="--columns with format helios, expected format table"):
        read(put(data.HELIOS), "helios", columns="submit=submit_time")
    with pytest.raises(ConfigError, match=r"names\.yaml: submit: 3, expected the name of a column"):
        read(put(OWN), "table", columns=str(put("submit: 3\n", "names.yaml")))
    assert {"submit", "start", "end", "duration", "gpus", "workers", "gpu_type", "service_class", "state"} <= set(
        COLUMNS
    )


def test_load_is_shown_by_gpu_type_and_service_class(put, capsys) -> None:
    from rich.console import Console

    text = data.SPOT.replace("9589663", "360000")
    Console(width=100).print(tables(read(put(text)).trace))
    shown = capsys.readouterr().out
    assert "Load by GPU type" in shown
    assert "Load by service class" in shown
    row = next(line for line in shown.splitlines() if "A100-SXM4-80GB" in line)
    hours = (16 * 41_060 + 2 * 71_718) / 3600
    assert [cell.strip() for cell in row.strip("│ ").split("│")][1:] == ["2", f"{hours:,.0f}", f"{hours / 100:.1f}"]
