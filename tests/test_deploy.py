"""The Dockerfile and the KubeRay manifest, as far as they can be checked without Docker and Kubernetes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlpto.cli.main import verbs
from rlpto.service.settings import ServiceSettings, load_service

ROOT = Path(__file__).parents[1]
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|[KMGT]i?)?$"


@pytest.fixture(scope="module")
def manifest() -> dict[str, dict[str, Any]]:
    parts = yaml.safe_load_all((ROOT / "deploy/kuberay.yaml").read_text())
    return {part["kind"]: part for part in parts}


@pytest.fixture(scope="module")
def cluster(manifest: dict[str, dict[str, Any]]) -> Any:
    return manifest["RayCluster"]["spec"]


@pytest.fixture(scope="module")
def settings(manifest: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> ServiceSettings:
    path = tmp_path_factory.mktemp("settings") / "service.yaml"
    path.write_text(manifest["ConfigMap"]["data"]["service.yaml"])
    return load_service(path)


def pods(cluster: Any) -> list[Any]:
    return [cluster["headGroupSpec"]["template"]["spec"], *(one["template"]["spec"] for one in worker_groups(cluster))]


def worker_groups(cluster: Any) -> list[Any]:
    return list(cluster["workerGroupSpecs"])


def mounts(container: Any) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def test_fields_of_kuberay_are_those_of_its_types(manifest: dict[str, dict[str, Any]], cluster: Any) -> None:
    """As its CRD of ray.io/v1 has them, at commit 017710c of KubeRay's repository."""
    assert manifest["RayCluster"]["apiVersion"] == "ray.io/v1"
    assert cluster.keys() <= {"headGroupSpec", "workerGroupSpecs", "rayVersion"}
    for group in (cluster["headGroupSpec"], *worker_groups(cluster)):
        numbers = {"replicas", "minReplicas", "maxReplicas"} & group.keys()
        assert group.keys() - numbers <= {"groupName", "rayStartParams", "template"}
        assert all(type(group[name]) is int for name in numbers)
        assert all(type(value) is str for value in group["rayStartParams"].values()), "YAML's numbers are refused"


def test_every_volume_is_there_and_named_once(cluster: Any, manifest: dict[str, dict[str, Any]]) -> None:
    named = {"persistentVolumeClaim": ("claimName", "PersistentVolumeClaim"), "configMap": ("name", "ConfigMap")}
    for pod in pods(cluster):
        names = [volume["name"] for volume in pod["volumes"]]
        assert len(names) == len(set(names))
        assert {name for container in pod["containers"] for name in mounts(container).values()} == set(names)
        for volume in pod["volumes"]:
            (source,) = volume.keys() - {"name"}
            if source in named:
                key, kind = named[source]
                assert volume[source][key] == manifest[kind]["metadata"]["name"]
    assert manifest["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"], "several pods mount it"


def test_the_service_is_a_driver_of_the_heads_ray_node(cluster: Any, settings: ServiceSettings) -> None:
    ray, service = pods(cluster)[0]["containers"]
    for path in ("/tmp/ray", "/dev/shm"):
        assert mounts(ray)[path] == mounts(service)[path], "a driver shares sockets and memory with its node"
    assert settings.scheduler.address == "127.0.0.1:6379"
    assert 6379 in [port["containerPort"] for port in ray["ports"]]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "0"
    for group in worker_groups(cluster):
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert "nvidia.com/gpu" in group["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_jobs_find_their_folders_on_every_pod(cluster: Any, settings: ServiceSettings) -> None:
    root = f"/{settings.folder.parts[1]}"
    for pod in pods(cluster):
        for container in pod["containers"]:
            assert mounts(container)[root] == "data"


def test_the_service_is_where_others_look_for_it(
    cluster: Any, settings: ServiceSettings, manifest: dict[str, dict[str, Any]]
) -> None:
    service = pods(cluster)[0]["containers"][1]
    (port,) = service["ports"]
    (outside,) = manifest["Service"]["spec"]["ports"]
    assert port["containerPort"] == settings.web.port == outside["port"] == outside["targetPort"]
    assert manifest["Service"]["spec"]["selector"]["ray.io/cluster"] == manifest["RayCluster"]["metadata"]["name"]
    assert settings.web.host == "0.0.0.0"
    assert settings.web.behind_proxy
    probe = service["readinessProbe"]["exec"]["command"][-1]
    assert f"127.0.0.1:{port['containerPort']}/readyz" in probe
    compile(probe, "probe", "exec")


def test_commands_and_versions_are_ours(cluster: Any) -> None:
    service = pods(cluster)[0]["containers"][1]
    program, verb, path = service["command"]
    assert program == "rlpto"
    assert verb in dict(verbs())
    assert path.startswith("/etc/rlpto/")
    assert mounts(service)["/etc/rlpto"] == "settings"
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert cluster["rayVersion"] == pinned[1], "all pods run the Ray that is installed into the image"
    for pod in pods(cluster):
        for container in pod["containers"]:
            assert container["image"] == pod["containers"][0]["image"]
            for amounts in container["resources"].values():
                assert all(re.fullmatch(QUANTITY, str(amount)) for amount in amounts.values()), amounts


def test_the_image_serves_as_an_ordinary_user() -> None:
    text = re.sub(r"\\\n", " ", (ROOT / "deploy/Dockerfile").read_text())
    values = dict(line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#"))
    assert values["USER"] != "root"
    assert values["EXPOSE"] == str(ServiceSettings.model_fields["web"].default.port)
    assert [*json.loads(values["ENTRYPOINT"]), *json.loads(values["CMD"])][:2] == ["rlpto", "serve"]
    compile(json.loads(values["HEALTHCHECK"].removeprefix("CMD "))[-1], "health", "exec")
    assert re.search("install.* wget", text), "KubeRay's probes call it"
    assert re.search(r"-c constraints\.txt.*\.\[oidc\]", text)
