"""Manifests of docs/kubernetes/ fit the schemas of Kubernetes and Kubeflow.

`.ci/kubernetes` keeps these schemas.
"""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml
from pages import ROOT, page

import flfast
from flfast.output.results.outcome import EXIT_BUSY
from flfast.state.stop_requests import EXIT_STOPPED

SCHEMAS = json.loads(Path(__file__).with_name("kubernetes.json").read_text(encoding="utf-8"))
MANIFESTS = {
    f"{path.name}: {manifest['kind']}": manifest
    for path in sorted((ROOT / "docs" / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}


def problems(manifest):
    from jsonschema import Draft202012Validator

    schema = SCHEMAS[f"{manifest['apiVersion']} {manifest['kind']}"]
    return [error.message for error in Draft202012Validator(schema).iter_errors(manifest)]


def pods(node):
    """Templates of pods, wherever they are."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        node = node.values()
    if not isinstance(node, str):
        for child in node if hasattr(node, "__iter__") else ():
            yield from pods(child)


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_is_valid(manifest):
    assert problems(manifest) == []


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_a_mistake_in_a_manifest_is_found(manifest):
    wrong = copy.deepcopy(manifest)
    wrong["spec"]["replicas"] = 2
    assert "'replicas' was unexpected" in str(problems(wrong))
    for pod in pods(wrong):
        pod["terminationGracePeriodSeconds"] = "120"
        assert "'120' is not of type 'integer'" in str(problems(wrong))


FILES = sorted({name.partition(":")[0] for name in MANIFESTS} - {"volume.yaml"})
TEXTS = {file: (ROOT / "docs" / "kubernetes" / file).read_text(encoding="utf-8") for file in FILES}
PODS = {
    f"{name} {number}": pod
    for name, manifest in MANIFESTS.items()
    for number, pod in enumerate(pods(manifest))
}
each_pod = pytest.mark.parametrize("pod", PODS.values(), ids=PODS)


def test_every_file_but_the_volume_has_pods():
    assert sorted({name.partition(":")[0] for name in PODS}) == FILES


@pytest.mark.parametrize("name", PODS)
def test_a_pod_under_torchrun_has_the_variables_that_the_page_names(name):
    part = page("clusters").partition("\n## torchrun\n")[2].partition("\n## ")[0]
    told = set(re.findall(r"TORCH_\w+", part))
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in told
    (container,) = PODS[name]["containers"]
    found = {variable["name"]: variable["value"] for variable in container.get("env", ())}
    is_under_torchrun = "[torchrun," in TEXTS[name.partition(":")[0]]
    assert found.keys() == (told if is_under_torchrun else set())
    assert found.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1") == "1"


@each_pod
def test_a_pod_lets_the_images_user_write_to_the_disk(pod):
    recipe = (ROOT / ".ci" / "Dockerfile").read_text(encoding="utf-8")
    (user,) = re.findall(r"^USER (\d+)$", recipe, re.MULTILINE)
    assert pod["securityContext"]["fsGroup"] == int(user)
    claim = MANIFESTS["volume.yaml: PersistentVolumeClaim"]["metadata"]["name"]
    claims = [volume.get("persistentVolumeClaim") for volume in pod["volumes"]]
    assert {"claimName": claim} in claims


@each_pod
def test_a_pod_mounts_its_volumes_and_memory_for_what_processes_share(pod):
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    (memory,) = (name for name, path in mounts.items() if path == "/dev/shm")
    assert volumes[memory]["emptyDir"].keys() == {"medium", "sizeLimit"}
    assert volumes[memory]["emptyDir"]["medium"] == "Memory"


@each_pod
def test_the_tag_of_a_pods_image_is_this_version(pod):
    (container,) = pod["containers"]
    assert container["image"] == f"flfast:{flfast.__version__}"


@pytest.mark.parametrize("file", FILES)
def test_a_manifest_shows_how_to_ask_for_gpus(file):
    ((limits, comment),) = set(re.findall(r"limits: \{(.*)\} # (.*)", TEXTS[file]))
    asked = yaml.safe_load(f"{{{limits}, {comment.removeprefix('with GPUs also ')}}}")
    assert asked.keys() == {"cpu", "memory", "nvidia.com/gpu"}
    assert asked["nvidia.com/gpu"] >= 1


def test_torchrun_gives_up_on_ranks_before_kubernetes_gives_up_on_the_pod():
    waits = [
        (pod["terminationGracePeriodSeconds"], int(variable["value"]))
        for manifest in MANIFESTS.values()
        for pod in pods(manifest)
        for variable in pod["containers"][0].get("env", ())
    ]
    assert waits
    assert all(shutdown < pod for pod, shutdown in waits)


def test_the_job_goes_on_after_a_stop_and_ends_with_a_refused_setting():
    rules = MANIFESTS["run.yaml: Job"]["spec"]["podFailurePolicy"]["rules"]
    actions = {
        code: rule["action"]
        for rule in rules
        for code in rule.get("onExitCodes", {"values": ()})["values"]
    }
    assert actions == {2: "FailJob", EXIT_STOPPED: "Ignore", EXIT_BUSY: "Ignore"}
