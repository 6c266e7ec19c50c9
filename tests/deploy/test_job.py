"""The Kubernetes Job: by the schema, by the restricted profile of pod security, and with flags that run.py has."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from harness.config.cli import load_file
from harness.config.run import RunConfig
from tests.conftest import ROOT

PATH = ROOT / "deploy" / "k8s" / "job.yaml"
MANIFESTS = {each["kind"]: each for each in yaml.safe_load_all(PATH.read_text())}
OLDEST = "1.31"  # podFailurePolicy is stable from it on


def pod() -> Any:
    return MANIFESTS["Job"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", MANIFESTS)
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_each_manifest_is_by_the_schema(kind: str, version: str) -> None:
    assert kubernetes_validate.validate(MANIFESTS[kind], version, strict=True)


def test_a_mistake_would_be_found() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(MANIFESTS["Job"]))
    wrong["spec"]["podFailurePolicy"]["rules"][0]["onExitCode"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, OLDEST, strict=True)


def test_it_is_within_the_restricted_profile_with_a_read_only_root() -> None:
    assert (
        pod()["securityContext"]["runAsNonRoot"]
        and pod()["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    for container in pod()["containers"]:
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"] and context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert not any("hostPath" in volume for volume in pod()["volumes"])
    writable = {each["mountPath"] for each in pod()["containers"][0]["volumeMounts"] if not each.get("readOnly")}
    assert writable == {"/app/results", "/tmp", "/cache"}


def test_what_would_fail_again_is_not_tried_again() -> None:
    (rule, _) = MANIFESTS["Job"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [1, 2]
    assert rule["onExitCodes"]["containerName"] == pod()["containers"][0]["name"] and pod()["restartPolicy"] == "Never"
    assert pod()["terminationGracePeriodSeconds"] >= 30


def test_its_settings_are_flags_of_run(tmp_path: Any) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MANIFESTS["ConfigMap"]["data"]["run.yaml"])
    config = RunConfig(**load_file(path, RunConfig))
    assert config.endpoint == ("http://llama-server:8000/v1",) and config.server_target_qps == "max"
