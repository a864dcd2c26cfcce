"""Copies of checkpoints on a real S3 server: they arrive, outlive the disk, and damage is recognised."""

import shutil
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import boto3
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Response
from werkzeug.wsgi import get_input_stream

from rlpto.ray_cluster.job.job_folder import JobFolder
from rlpto.store.object_storage import checked_uri
from tests.ray_cluster.running import SESSION, make_spec
from tests.service.web.helpers import answering
from tests.slow import few

PLACE = f"runs/{SESSION}/job/"
KEY, SECRET = "key-that-is-not-shown", "secret-that-is-not-shown"
BUCKET = "mine"
ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{}</Code><Message>Refused, request {}</Message><AWSAccessKeyId>{}</AWSAccessKeyId></Error>"""


class Quiet(WSGIRequestHandler):
    """Prints nothing."""

    def log(self, *_: Any) -> None:
        pass


class Server:
    """moto's S3 server, with faults for jobs alone: each upload takes `delay_s` more, and requests of `refused` methods
    are answered with `code` and `reason`, or, if `code` is 0, not at all.

    asked: set once an upload has come. refusals: so far.
    """

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self.http = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet)
        self.uri = f"s3://{BUCKET}/runs?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{self.http.port}"
        self.delay_s, self.refused, self.code, self.reason, self.refusals = 0.0, ("",), 0, "", 0
        self.asked = Event()

    def fail(self, code: int, reason: str, *methods: str) -> None:
        """Refuse from now on; no methods: none any more."""
        self.code, self.reason, self.refused = code, reason, methods

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, of_job = environ["REQUEST_METHOD"], "aws-sdk-cpp" in environ.get("HTTP_USER_AGENT", "")
        if of_job and method == "PUT":
            self.asked.set()
            time.sleep(self.delay_s)
        if not of_job or method not in self.refused:
            return self._moto(environ, start_response)  # type: ignore[no-any-return]
        get_input_stream(environ).read()
        self.refusals += 1
        if not self.code:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)  # else it waits for another request, as clients do
            raise ConnectionError
        key = environ.get("HTTP_AUTHORIZATION", "=/").split("=")[1].split("/")[0]
        said = ERROR.format(self.reason, self.refusals, key)
        headers = {"x-amz-request-id": str(self.refusals)}
        return Response(said, self.code, headers, content_type="application/xml")(environ, start_response)

    @property
    def bucket(self) -> Any:
        address = f"http://127.0.0.1:{self.http.port}"
        return boto3.resource("s3", endpoint_url=address, region_name="us-east-1").Bucket(BUCKET)

    def steps(self) -> list[int]:
        """Steps of the copies, newest first."""
        names = [one.key.removeprefix(PLACE) for one in self.bucket.objects.filter(Prefix=f"{PLACE}step-")]
        return sorted((int(name.split("-")[1]) for name in names), reverse=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """With an empty bucket, and credentials in the environment, where nodes have them."""
    for name, value in (("ACCESS_KEY_ID", KEY), ("SECRET_ACCESS_KEY", SECRET), ("EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(f"AWS_{name}", value)
    found = Server()
    with answering(found.http):
        found.bucket.create()
        yield found
        for one in found.bucket.objects.all():  # moto keeps them for the next server of this process
            one.delete()
        found.bucket.delete()


def folder_of(server: Server, where: Path, uri: str = "") -> JobFolder:
    return JobFolder(make_spec(where, storage=uri or server.uri))


def test_a_job_goes_on_from_the_copy_where_its_disk_is_gone(server: Server, tmp_path: Path) -> None:
    job = folder_of(server, tmp_path / "job")
    assert job.begin(resume=False) is None
    for step in (10, 20, 30):
        job.write(step, b"state %d" % step)
    job.close()
    assert server.steps()[0] == 30
    assert len(server.steps()) <= 2
    elsewhere = folder_of(server, tmp_path / "another node")
    assert elsewhere.begin(resume=True) is None
    assert elsewhere.newest_state() == (30, b"state 30")
    assert "went on from step-000000000030" in elsewhere.failure
    shutil.rmtree(tmp_path / "another node")
    assert elsewhere.newest_state() == (30, b"state 30")
    over = folder_of(server, tmp_path / "another node")
    over.begin(resume=False)
    keys = [one.key for one in server.bucket.objects.all()]
    assert keys == [PLACE.replace("job/", "")], "of the job nothing stays, of its session one empty object of Arrow"


def with_two_copies(server: Server, folder: Path) -> JobFolder:
    """The folder of a job with checkpoints of steps 10 and 20, both copied."""
    for step in (10, 20):
        job = folder_of(server, folder)
        job.write(step, b"state %d" % step)
        job.close()
    assert server.steps() == [20, 10]
    return folder_of(server, folder)


def test_a_step_that_is_trained_again_replaces_its_copy(server: Server, tmp_path: Path) -> None:
    job = with_two_copies(server, tmp_path / "job")
    job.write(20, b"another state")
    job.close()
    assert server.steps() == [20, 10]


def test_a_copy_that_is_damaged_is_passed_over(server: Server, tmp_path: Path) -> None:
    job = with_two_copies(server, tmp_path / "job")
    newest = max(one.key for one in server.bucket.objects.filter(Prefix=PLACE))
    server.bucket.put_object(Key=newest, Body=b"sta")
    for file in (tmp_path / "job").glob("*.ckpt"):
        file.write_bytes(b"damaged")
    assert job.newest_state() == (10, b"state 10")
    assert "step-000000000020 is damaged" in failures(tmp_path / "job")
    job.refuse("it is of another model")
    assert job.newest_state() is None, "what cannot be loaded is not fetched again: the job starts over"
    job.write(5, b"state 5")
    job.close()
    assert server.steps() == [5], "its new copies stay, and those of the training that was given up go"


def test_a_newer_copy_stays_if_the_checkpoint_on_disk_is_damaged(server: Server, tmp_path: Path) -> None:
    job = with_two_copies(server, tmp_path / "job")
    max((tmp_path / "job").glob("*.ckpt")).write_bytes(b"damaged")
    job.write(15, b"state 15")
    job.close()
    assert server.steps() == [20, 15, 10]


ALL = ("GET", "HEAD", "PUT", "POST", "DELETE")
FAULTS = {
    "wrong credentials": (403, "InvalidAccessKeyId", ALL, "INVALID_ACCESS_KEY_ID"),
    "full": (507, "QuotaExceeded", ("PUT", "POST"), "HTTP status 507"),
    "away": (0, "", ALL, "NETWORK_CONNECTION"),
}


@pytest.mark.parametrize("fault", few(FAULTS, "away"))
def test_a_fault_is_said_once_and_copies_arrive_after_it(server: Server, tmp_path: Path, fault: str) -> None:
    code, reason, methods, said = FAULTS[fault]
    server.fail(code, reason, *methods)
    job_at = tmp_path / "job"
    job = folder_of(server, job_at)
    for step in (10, 20, 30):
        before = server.refusals
        job.write(step, b"state %d" % step)
        assert job.newest_state() == (step, b"state %d" % step), "it trains on"
        while server.refusals == before:
            time.sleep(0.01)
    while "has not arrived" not in job.failure:
        time.sleep(0.01)
    assert server.steps() == []
    assert said in failures(job_at)
    server.fail(0, "")
    while server.steps() != [30]:
        time.sleep(0.01)
    job.write(40, b"state 40")
    job.close()
    assert server.steps() == [40, 30]
    lines = failures(job_at).splitlines()
    assert [line.split(": ", 1)[1].split(":")[0] for line in lines] == [
        "the newest checkpoint has not arrived",
        "checkpoints arrive again",
    ]
    for file in job_at.iterdir():
        assert not any(one.encode() in file.read_bytes() for one in (KEY, SECRET)), file.name
    assert not any(one.encode() in Path("/proc/self/cmdline").read_bytes() for one in (KEY, SECRET))


def failures(folder: Path) -> str:
    return (folder / "failures.log").read_text()


@pytest.mark.slow
def test_a_slow_server_gets_the_newest_copy(server: Server, tmp_path: Path) -> None:
    server.delay_s = 3.5  # Arrow's own limit is 3 s
    job = folder_of(server, tmp_path / "job")
    job.write(10, b"state 10")
    server.asked.wait()
    for step in (20, 30, 40):  # meanwhile the first is dropped
        job.write(step, b"state %d" % step)
        assert job.newest_state() == (step, b"state %d" % step), "it trains on"
    job.close()
    assert server.steps()[0] == 40
    assert not (tmp_path / "job" / "failures.log").exists()


def test_the_next_start_uploads_what_the_end_could_not(server: Server, tmp_path: Path) -> None:
    server.fail(403, "InvalidAccessKeyId", *ALL)
    job = folder_of(server, tmp_path / "job")
    job.write(10, b"state 10")
    job.close()
    assert "the last checkpoint has not arrived: AWS Error INVALID_ACCESS_KEY_ID" in job.failure
    server.fail(0, "")
    again = folder_of(server, tmp_path / "job")
    again.begin(resume=True)
    again.close()
    assert server.steps() == [10]
    assert again.failure == ""


def test_a_bucket_that_is_not_there_is_named(server: Server, tmp_path: Path) -> None:
    job = folder_of(server, tmp_path / "job", server.uri.replace(BUCKET, "other", 1))
    job.begin(resume=True)
    job.write(10, b"state 10")
    job.close()
    assert "s3://other/runs" in job.failure
    assert job.newest_state() == (10, b"state 10")


@pytest.mark.parametrize(
    ("uri", "said"),
    [("bucket/folder", "such as s3://"), ("s3://", "such as s3://"), ("s3://a:b@c/d", "no credentials")],
)
def test_addresses_that_are_refused(uri: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked_uri(uri)
