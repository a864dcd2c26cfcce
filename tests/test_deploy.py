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


MANIFEST = {part["kind"]: part for part in yaml.safe_load_all((ROOT / "deploy/kuberay.yaml").read_text())}
CLUSTER = MANIFEST["RayCluster"]["spec"]
HEAD, WORKERS = CLUSTER["headGroupSpec"], CLUSTER["workerGroupSpecs"]
PODS = [group["template"]["spec"] for group in (HEAD, *WORKERS)]
CONTAINERS = [container for pod in PODS for container in pod["containers"]]
RAY, SERVICE = PODS[0]["containers"]


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    (tmp_path / "service.yaml").write_text(MANIFEST["ConfigMap"]["data"]["service.yaml"])
    return load_service(tmp_path / "service.yaml")


def mounts(container: Any) -> dict[str, str]:
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def test_fields_of_kuberay_are_those_of_its_types() -> None:
    """As its CRD of ray.io/v1 has them, at commit 017710c of KubeRay's repository."""
    assert MANIFEST["RayCluster"]["apiVersion"] == "ray.io/v1"
    assert CLUSTER.keys() <= {"headGroupSpec", "workerGroupSpecs", "rayVersion"}
    for group in (HEAD, *WORKERS):
        numbers = {"replicas", "minReplicas", "maxReplicas"} & group.keys()
        assert group.keys() - numbers <= {"groupName", "rayStartParams", "template"}
        assert all(type(group[name]) is int for name in numbers)
        assert all(type(value) is str for value in group["rayStartParams"].values()), "YAML's numbers are refused"


def test_every_volume_is_there_and_named_once() -> None:
    named = {"persistentVolumeClaim": ("claimName", "PersistentVolumeClaim"), "configMap": ("name", "ConfigMap")}
    for pod in PODS:
        names = [volume["name"] for volume in pod["volumes"]]
        assert len(names) == len(set(names))
        assert {name for container in pod["containers"] for name in mounts(container).values()} == set(names)
        for volume in pod["volumes"]:
            (source,) = volume.keys() - {"name"}
            if source in named:
                key, kind = named[source]
                assert volume[source][key] == MANIFEST[kind]["metadata"]["name"]
    assert MANIFEST["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"], "several pods mount it"


def test_the_service_is_a_driver_of_the_heads_ray_node(settings: ServiceSettings) -> None:
    for path in ("/tmp/ray", "/dev/shm"):
        assert mounts(RAY)[path] == mounts(SERVICE)[path], "a driver shares sockets and memory with its node"
    assert settings.scheduler.address == "127.0.0.1:6379"
    assert 6379 in [port["containerPort"] for port in RAY["ports"]]
    assert HEAD["rayStartParams"]["num-gpus"] == "0"
    for group in WORKERS:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert "nvidia.com/gpu" in group["template"]["spec"]["containers"][0]["resources"]["limits"]
    jobs = f"/{settings.folder.parts[1]}"
    assert {mounts(container)[jobs] for container in CONTAINERS} == {"data"}, "jobs find their folders on every pod"


def test_the_service_is_where_others_look_for_it(settings: ServiceSettings) -> None:
    (port,) = SERVICE["ports"]
    (outside,) = MANIFEST["Service"]["spec"]["ports"]
    assert port["containerPort"] == settings.web.port == outside["port"] == outside["targetPort"]
    assert MANIFEST["Service"]["spec"]["selector"]["ray.io/cluster"] == MANIFEST["RayCluster"]["metadata"]["name"]
    assert settings.web.host == "0.0.0.0"
    assert settings.web.behind_proxy
    probe = SERVICE["readinessProbe"]["exec"]["command"][-1]
    assert f"127.0.0.1:{port['containerPort']}/readyz" in probe
    compile(probe, "probe", "exec")


def test_commands_and_versions_are_ours() -> None:
    program, verb, path = SERVICE["command"]
    assert program == "rlpto"
    assert verb in dict(verbs())
    assert path.startswith("/etc/rlpto/")
    assert mounts(SERVICE)["/etc/rlpto"] == "settings"
    pinned = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert CLUSTER["rayVersion"] == pinned[1], "all pods run the Ray that is installed into the image"
    assert all(len({container["image"] for container in pod["containers"]}) == 1 for pod in PODS)
    for amounts in (amounts for container in CONTAINERS for amounts in container["resources"].values()):
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
