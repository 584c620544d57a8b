"""Writes the models at the end of the run: the server's, and those of the clients."""

import json
import logging
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from flfast.datamodules.prepared import preprocessing_of
from flfast.datamodules.preprocessing import FILE as PREPROCESSING
from flfast.federation.loop import Federation
from flfast.lit.user_module import UserModule
from flfast.models.adapters.adapted import ADAPTER, FILE, Adapted
from flfast.state.options import NonNegativeInt
from flfast.state.tensor_file import write_safetensors, write_tensors
from flfast.state.version import __version__
from flfast.state.weights import model_weights, write_weights

log = logging.getLogger(__name__)
_log_once = rank_zero_only(log.info)


class FinalWeights(Callback):
    """Saves weights as state dicts of CPU tensors.

    `model.pt` is the server's model, `model.safetensors` the same with a description, and of a
    user's LightningModule `model.ckpt`, which its `load_from_checkpoint` reads. If the
    server has no complete model, `shared.pt` is what it has instead: the part that clients share,
    prototypes, or several models. `personal/CLIENT.pt` is a client's own model; CLIENT is its
    number, with its name if the data name it, such as `3-ward_b`.
    `torch.load(path, weights_only=True)` reads the files; `Module.load_state_dict` accepts those
    of complete models.

    With an adapter, `model.pt` is the base changed by the adapter, which fits the model without
    one. `adapter/` holds the adapter as the library peft reads it, and `personal/CLIENT.pt` the
    adapter of a client.

    With more clients than `max_personal`, no client's own model is saved.
    """

    def __init__(self, *, max_personal: NonNegativeInt | None, model: str | None) -> None:
        super().__init__()
        self._max_personal, self._model = max_personal, model

    @rank_zero_only
    def on_run_start(self, federation: Federation) -> None:
        """Write `preprocessing.json`: what the data's source made of raw values."""
        preprocessing_of(federation.data.examples).write(federation.run_dir)

    def on_run_end(self, federation: Federation) -> None:
        """Write the files: rank 0 the server's, each rank those of its clients."""
        self._save_shared(federation)
        if federation.algorithm.personal is None:
            return
        limit, num = self._max_personal, federation.population
        if limit is not None and num > limit:
            _log_once(
                "the models of %d clients are not saved: more than "
                "callbacks.final_weights.max_personal=%d",
                num,
                limit,
            )
            return
        folder = federation.run_dir / "personal"
        for client_id, weights in federation.personal_weights():
            write_tensors(folder / f"{federation.data.client_file(client_id)}.pt", weights)
        _log_once("personal/ has the own models of %d clients", num)

    @rank_zero_only
    def _save_shared(self, federation: Federation) -> None:
        weights = federation.weights()
        complete = federation.algorithm.evaluate_server
        if weights:
            name = "model.pt" if complete else "shared.pt"
            adapted = federation.engine.site.adapted
            if complete and adapted is not None:
                if federation.algorithm.kit.fold is None:
                    self._save_adapter(adapted, federation)
                federation.engine.site.fold_server(federation.server)
                weights = adapted.complete(model_weights(federation.server))
            write_tensors(federation.run_dir / name, weights)
            if complete:
                path = federation.run_dir / "model.safetensors"
                write_safetensors(path, weights, self._metadata(federation))
            model = federation.engine.site.model
            if complete and isinstance(model, UserModule):
                write_weights(model, model_weights(federation.server))
                self._save_checkpoint(model, federation.run_dir / "model.ckpt")
        if not complete:
            log.info("no model.pt: the server has no complete model")

    def _save_checkpoint(self, model: UserModule, path: Path) -> None:
        model.trainer = trainer = L.Trainer(accelerator="cpu", devices=1, barebones=True)
        trainer.strategy.connect(model.cpu())
        try:
            trainer.save_checkpoint(path, weights_only=True)
        except Exception as error:  # noqa: BLE001 - of the user's hook or hyperparameters
            log.warning("no %s: %s: %s", path.name, type(error).__name__, error)

    def _save_adapter(self, adapted: Adapted, federation: Federation) -> None:
        folder = federation.run_dir / ADAPTER
        tensors = adapted.to_file(model_weights(federation.server))
        write_safetensors(folder / FILE, tensors, self._metadata(federation))
        if adapted.settings is not None:
            text = json.dumps(adapted.settings, indent=2, sort_keys=True)
            (folder / "adapter_config.json").write_text(f"{text}\n", encoding="utf-8")

    def _metadata(self, federation: Federation) -> dict[str, str]:
        data = federation.data
        return {
            "format": "pt",  # as libraries that load weights by this key expect
            "flfast": __version__,
            "algorithm": federation.algorithm.name,
            "model": self._model or type(federation.engine.site.model).__name__,
            "input_shape": json.dumps(data.examples.input_shape),
            "num_classes": str(data.num_classes),
            "preprocessing": PREPROCESSING,
            "round": str(federation.history[-1]["round"]),
        }
