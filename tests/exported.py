"""Opens exported programs without flfast."""

import json

import pytest
import torch


def load_torch(path):
    extra = {"flfast.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    return program, json.loads(extra["flfast.json"])


def load_onnx(path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def program(inputs):
        (outputs,) = session.run(None, {"inputs": inputs.numpy()})
        return torch.from_numpy(outputs)

    return program, session.get_modelmeta().custom_metadata_map


LOAD = {"torch": load_torch, "onnx": load_onnx}
