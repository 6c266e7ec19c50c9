"""The Kubernetes Jobs: by the schema, by the restricted profile of pod security, with what their pods need, and with
flags that run.py has.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from harness.config.run import RunConfig
from tests.conftest import ROOT

FILES = sorted((ROOT / "deploy" / "k8s").glob("*.yaml"))
OLDEST = "1.31"  # podFailurePolicy is stable from it on
MANIFESTS = [(path, manifest) for path in FILES for manifest in yaml.safe_load_all(path.read_text())]
JOBS = {path.stem: manifest for path, manifest in MANIFESTS if manifest["kind"] == "Job"}
every_file = pytest.mark.parametrize("path", [path for path in FILES if path.stem in JOBS], ids=lambda path: path.stem)
every_job = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


def pod(job: Any) -> Any:
    return job["spec"]["template"]["spec"]


def named(path: Path, kind: str) -> Any:
    return {each["metadata"]["name"]: each for file, each in MANIFESTS if file == path and each["kind"] == kind}


@pytest.mark.parametrize("manifest", [each for _, each in MANIFESTS], ids=lambda each: each["kind"])
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_each_manifest_is_by_the_schema(manifest: Any, version: str) -> None:
    assert kubernetes_validate.validate(manifest, version, strict=True)


@every_job
def test_a_mistake_would_be_found(job: Any) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(job))
    wrong["spec"]["podFailurePolicy"]["rules"][0]["onExitCode"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


@every_job
def test_it_is_within_the_restricted_profile_with_a_read_only_root(job: Any) -> None:
    assert pod(job)["securityContext"]["runAsNonRoot"]
    assert pod(job)["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    for container in pod(job)["containers"]:
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"] and context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert not any("hostPath" in volume for volume in pod(job)["volumes"])
    writable = {each["mountPath"] for each in pod(job)["containers"][0]["volumeMounts"] if not each.get("readOnly")}
    assert writable - {"/dev/shm"} == {"/app/results", "/tmp", "/cache"}


@every_job
def test_what_would_fail_again_is_not_tried_again(job: Any) -> None:
    (rule, _) = job["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [1, 2]
    assert rule["onExitCodes"]["containerName"] == pod(job)["containers"][0]["name"]
    assert pod(job)["restartPolicy"] == "Never" and pod(job)["terminationGracePeriodSeconds"] >= 30
    assert job["spec"]["activeDeadlineSeconds"] > 3600


@every_file
def test_what_a_pod_mounts_is_made_by_its_own_file(path: Path) -> None:
    """Or by the command at the head of it: a pod that waits for a claim waits for ever."""
    mounted, made = pod(JOBS[path.stem]), path.read_text()
    (container,) = mounted["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in mounted["volumes"]}
    for volume in mounted["volumes"]:
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in named(path, "PersistentVolumeClaim")
        elif "configMap" in volume:
            assert volume["configMap"]["name"] in named(path, "ConfigMap")
        else:
            assert "emptyDir" in volume
    for source in container["envFrom"]:
        assert f"kubectl create secret generic {source['secretRef']['name']} " in made


def test_the_results_of_either_job_can_be_copied() -> None:
    """By a pod within the same profile, which mounts what the Jobs write into; its head copies from there."""
    file, holder = next((path, each) for path, each in MANIFESTS if each["kind"] == "Pod")
    (container,), (volume,) = holder["spec"]["containers"], holder["spec"]["volumes"]
    for job in JOBS.values():
        (written,) = (each for each in pod(job)["volumes"] if each["name"] == volume["name"])
        assert written["persistentVolumeClaim"]["claimName"] in file.read_text()
        assert pod(job)["securityContext"] == holder["spec"]["securityContext"]
        assert pod(job)["containers"][0]["securityContext"] == container["securityContext"]
    (mount,) = container["volumeMounts"]
    assert f"kubectl cp {holder['metadata']['name']}:{mount['mountPath']} " in file.read_text()


def test_an_engine_has_a_gpu_and_shared_memory() -> None:
    mounted = pod(JOBS["gpu"])
    (container,) = mounted["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    (shm,) = (each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/dev/shm")
    (volume,) = (each for each in mounted["volumes"] if each["name"] == shm)
    assert volume["emptyDir"]["medium"] == "Memory"
    (secret,) = container["envFrom"]
    assert not secret["secretRef"].get("optional")


@every_file
@pytest.mark.parametrize("conditions", ["SuccessCriteriaMet Complete", "FailureTarget Failed"])
def test_the_wait_ends_for_either_end(path: Path, conditions: str, tmp_path: Path) -> None:
    (command,) = re.findall(r"^#   (until .+)$", path.read_text(), re.M)
    (tmp_path / "kubectl").write_text(
        f'#!/bin/sh\necho "$@" >>"{tmp_path}/asked"\n[ "$(wc -l <"{tmp_path}/asked")" -lt 3 ] || echo "{conditions}"\n'
    )
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    for name in ("kubectl", "sleep"):
        (tmp_path / name).chmod(0o755)
    path_of_commands = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=path_of_commands, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and done.stdout.strip() == conditions
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 3 and f"job {JOBS[path.stem]['metadata']['name']} " in asked[0]


@every_file
def test_its_settings_are_flags_of_run(path: Path, tmp_path: Path) -> None:
    (settings,) = named(path, "ConfigMap").values()
    (tmp_path / "run.yaml").write_text(settings["data"]["run.yaml"])
    config = RunConfig.load(tmp_path / "run.yaml")
    if path.stem == "client":
        assert config.endpoint == ("http://llama-server:8000/v1",) and config.server_target_qps == "max"
    else:
        assert not config.endpoint and config.scenario == "offline"
