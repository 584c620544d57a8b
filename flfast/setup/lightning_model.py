"""A user's `LightningModule` as the model of a run."""

import lightning as L

from flfast.lit.user_module import UserModule, adopt


def prepared(where: str, module: L.LightningModule) -> UserModule:
    """The module, in place, as one that a run can train."""
    module.configure_model()
    return adopt(module)
