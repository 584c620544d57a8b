"""Manifests of docs/kubernetes/ fit the schemas of Kubernetes and Kubeflow.

`.ci/kubernetes` keeps these schemas.
"""

import copy
import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from pages import ROOT

from flfast.output.results.outcome import EXIT_BUSY, EXIT_STOPPED

SCHEMAS = json.loads(Path(__file__).with_name("kubernetes.json").read_text(encoding="utf-8"))
MANIFESTS = {
    f"{path.name}: {manifest['kind']}": manifest
    for path in sorted((ROOT / "docs" / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}


def problems(manifest):
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
