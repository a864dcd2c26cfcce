"""The Dockerfile and the KubeRay manifest, as far as they can be checked without Docker and Kubernetes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from rlpto.cli.main import verbs
from rlpto.service.settings import ServiceSettings, load_service

ROOT = Path(__file__).parents[1]
NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|[KMGT]i?)?$"
Quantities = dict[str, str]


class Part(BaseModel):
    """A part of a manifest: no field but those that its schema has, and no other type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Metadata(Part):
    name: str = Field(pattern=NAME)
    labels: dict[str, str] = {}


class Port(Part):
    name: str = Field(pattern=NAME, max_length=15)
    containerPort: int = Field(ge=1, le=65_535)  # noqa: N815


class Mount(Part):
    name: str
    mountPath: str = Field(pattern=r"^/")  # noqa: N815


class Exec(Part):
    command: list[str]


class Probe(Part):
    exec: Exec
    timeoutSeconds: int = 1  # noqa: N815


class Resources(Part):
    requests: Quantities = {}
    limits: Quantities = {}


class Container(Part):
    name: str = Field(pattern=NAME)
    image: str
    command: list[str] = []
    ports: list[Port] = []
    resources: Resources = Resources()
    readinessProbe: Probe | None = None  # noqa: N815
    volumeMounts: list[Mount] = []  # noqa: N815


class Claim(Part):
    claimName: str  # noqa: N815


class ConfigMapName(Part):
    name: str


class EmptyDir(Part):
    medium: Literal["", "Memory"] = ""


class Volume(Part):
    name: str = Field(pattern=NAME)
    persistentVolumeClaim: Claim | None = None  # noqa: N815
    configMap: ConfigMapName | None = None  # noqa: N815
    emptyDir: EmptyDir | None = None  # noqa: N815


class Security(Part):
    fsGroup: int  # noqa: N815


class PodSpec(Part):
    securityContext: Security  # noqa: N815
    containers: list[Container] = Field(min_length=1)
    volumes: list[Volume] = []


class Template(Part):
    spec: PodSpec


class Head(Part):
    rayStartParams: dict[str, str]  # noqa: N815
    template: Template


class Group(Part):
    groupName: str = Field(pattern=NAME)  # noqa: N815
    replicas: int = Field(ge=0)
    minReplicas: int = Field(ge=0)  # noqa: N815
    maxReplicas: int = Field(ge=0)  # noqa: N815
    rayStartParams: dict[str, str]  # noqa: N815
    template: Template


class RayClusterSpec(Part):
    rayVersion: str  # noqa: N815
    headGroupSpec: Head  # noqa: N815
    workerGroupSpecs: list[Group] = Field(min_length=1)  # noqa: N815


class RayCluster(Part):
    apiVersion: Literal["ray.io/v1"]  # noqa: N815
    kind: Literal["RayCluster"]
    metadata: Metadata
    spec: RayClusterSpec


@pytest.fixture(scope="module")
def manifest() -> dict[str, dict[str, Any]]:
    parts = yaml.safe_load_all((ROOT / "deploy/kuberay.yaml").read_text())
    return {part["kind"]: part for part in parts}


@pytest.fixture(scope="module")
def cluster(manifest: dict[str, dict[str, Any]]) -> RayClusterSpec:
    return RayCluster.model_validate(manifest["RayCluster"]).spec


@pytest.fixture(scope="module")
def settings(manifest: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> ServiceSettings:
    path = tmp_path_factory.mktemp("settings") / "service.yaml"
    path.write_text(manifest["ConfigMap"]["data"]["service.yaml"])
    return load_service(path)


def pods(cluster: RayClusterSpec) -> list[PodSpec]:
    return [cluster.headGroupSpec.template.spec, *(group.template.spec for group in cluster.workerGroupSpecs)]


def mounts(container: Container) -> dict[str, str]:
    return {mount.mountPath: mount.name for mount in container.volumeMounts}


def test_every_volume_is_there_and_named_once(cluster: RayClusterSpec, manifest: dict[str, dict[str, Any]]) -> None:
    for pod in pods(cluster):
        names = [volume.name for volume in pod.volumes]
        assert len(names) == len(set(names))
        assert {name for container in pod.containers for name in mounts(container).values()} == set(names)
        for volume in pod.volumes:
            sources = [volume.persistentVolumeClaim, volume.configMap, volume.emptyDir]
            assert sum(source is not None for source in sources) == 1
            if volume.persistentVolumeClaim:
                assert volume.persistentVolumeClaim.claimName == manifest["PersistentVolumeClaim"]["metadata"]["name"]
            if volume.configMap:
                assert volume.configMap.name == manifest["ConfigMap"]["metadata"]["name"]
    assert manifest["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"], "several pods mount it"


def test_the_service_is_a_driver_of_the_heads_ray_node(cluster: RayClusterSpec, settings: ServiceSettings) -> None:
    ray, service = cluster.headGroupSpec.template.spec.containers
    for path in ("/tmp/ray", "/dev/shm"):
        assert mounts(ray)[path] == mounts(service)[path], "a driver shares sockets and memory with its node"
    assert settings.scheduler.address == "127.0.0.1:6379"
    assert 6379 in [port.containerPort for port in ray.ports]
    assert cluster.headGroupSpec.rayStartParams["num-gpus"] == "0"
    for group in cluster.workerGroupSpecs:
        assert group.minReplicas <= group.replicas <= group.maxReplicas
        assert "nvidia.com/gpu" in group.template.spec.containers[0].resources.limits


def test_jobs_find_their_folders_on_every_pod(cluster: RayClusterSpec, settings: ServiceSettings) -> None:
    root = f"/{settings.folder.parts[1]}"
    for pod in pods(cluster):
        for container in pod.containers:
            assert mounts(container)[root] == "data"


def test_the_service_is_where_others_look_for_it(
    cluster: RayClusterSpec, settings: ServiceSettings, manifest: dict[str, dict[str, Any]]
) -> None:
    service = cluster.headGroupSpec.template.spec.containers[1]
    (port,) = service.ports
    (outside,) = manifest["Service"]["spec"]["ports"]
    assert port.containerPort == settings.web.port == outside["port"] == outside["targetPort"]
    assert manifest["Service"]["spec"]["selector"]["ray.io/cluster"] == manifest["RayCluster"]["metadata"]["name"]
    assert settings.web.host == "0.0.0.0"
    assert settings.web.behind_proxy
    assert service.readinessProbe is not None
    assert f"127.0.0.1:{port.containerPort}/readyz" in service.readinessProbe.exec.command[-1]
    compile(service.readinessProbe.exec.command[-1], "probe", "exec")


def test_commands_and_versions_are_ours(cluster: RayClusterSpec) -> None:
    service = cluster.headGroupSpec.template.spec.containers[1]
    program, verb, path = service.command
    assert program == "rlpto"
    assert verb in dict(verbs())
    assert path.startswith("/etc/rlpto/")
    assert mounts(service)["/etc/rlpto"] == "settings"
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert cluster.rayVersion == pinned[1], "all pods run the Ray that is installed into the image"
    for pod in pods(cluster):
        for container in pod.containers:
            assert container.image == pod.containers[0].image
            for amount in (*container.resources.requests.values(), *container.resources.limits.values()):
                assert re.fullmatch(QUANTITY, amount), amount


def test_the_image_is_built_in_an_order_that_works() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    lines = [line for line in re.sub(r"\\\n", " ", text).splitlines() if line and not line.startswith("#")]
    steps = [tuple(line.split(maxsplit=1)) for line in lines]
    assert steps[0][0] == "FROM"
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "EXPOSE", "VOLUME", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {step for step, _ in steps} <= known
    runs = [rest for step, rest in steps if step == "RUN"]
    assert any("install" in run and "wget" in run for run in runs), "KubeRay's probes call it"
    assert any("-c constraints.txt" in run and ".[service]" in run for run in runs)
    order = [step for step, _ in steps]
    assert order.index("COPY") < max(at for at, step in enumerate(order) if step == "RUN") < order.index("USER")
    values = dict(steps)
    assert values["USER"] != "root"
    assert values["EXPOSE"] == str(ServiceSettings.model_fields["web"].default.port)
    assert [*json.loads(values["ENTRYPOINT"]), *json.loads(values["CMD"])][:2] == ["rlpto", "serve"]
    health = json.loads(values["HEALTHCHECK"].removeprefix("CMD "))
    compile(health[-1], "health", "exec")
    version = re.fullmatch(r"python:(\d+\.\d+)-slim", values["FROM"])
    assert version is not None
    assert version[1] == "3.11"
    for name in ("constraints.txt", "pyproject.toml", "rlpto"):
        assert (ROOT / name).exists(), "what is copied"
