"""Fine-tuning for evaluation: some epochs of plain local training, whose result is not kept.

`engines/evaluation/passes.py` measures the fine-tuned weights as the `finetuned` metrics.
"""

from flfast.algorithms.contract.downloads import OwnDownloads
from flfast.channel.sent import LocalResult
from flfast.engines.local_training import LocalTraining
from flfast.engines.site import Site
from flfast.lit.user_module import UserModule, without_traces
from flfast.state.plan import RoundPlan
from flfast.state.tree import Tree
from flfast.state.weights import read_weights, select_weights


class FineTuning:
    """Trains each client's weights further on the client's examples, for `num_epochs` >= 1.

    The site is one of plain local training, for which a client downloads its own weights.
    """

    def __init__(self, site: Site, training: LocalTraining, num_epochs: int) -> None:
        self._training, self._num_epochs, self._module = training, num_epochs, site.module
        self._names = {name for part in read_weights(site.model).values() for name in part}

    def __call__(self, weights: dict[int, Tree], plan: RoundPlan) -> dict[int, Tree]:
        """Fine-tuned weights by client, without leaves that the model lacks."""
        plan = plan._replace(local_epochs=self._num_epochs, local_steps=None)
        results: list[LocalResult] = []
        own = {k: select_weights(part, self._names.__contains__) for k, part in weights.items()}
        model = self._module.model
        if isinstance(model, UserModule):
            self._module.model = without_traces(model)
        try:
            self._training.train(list(own), OwnDownloads(own), plan, results.extend)
        finally:
            self._module.model = model
        return {result.client_id: result.done.weights for result in results}
