"""Runs a federation of a checked config, as one rank of a world."""

from collections.abc import Callable

from lightning.fabric.utilities.exceptions import MisconfigurationException

from flfast.checkpoints.signals import StopRequests
from flfast.config.errors import ConfigError, OneRankError
from flfast.config.job import HydraJob
from flfast.config.phases import Phase
from flfast.datamodules.sources.image_files import UnreadableImageError
from flfast.distributed.world import World
from flfast.federation.loop import DivergedError, Federation
from flfast.setup.acceptance import end_records
from flfast.setup.optimized_metric import optimized_metric
from flfast.setup.resume import decide
from flfast.setup.start import build
from flfast.setup.user_code import own_failure

_KNOWN_ERRORS = {
    "Expected more than 1 value per channel": (
        "BatchNorm got a batch of one example, which has no variance to divide by; raise "
        "batch_size, micro_batch or partition.min_samples, or use model.norm=group"
    ),
    "`val_check_interval`": (
        "trainer.val_check_interval is larger than a client's number of batches; allowed: a "
        "share of them in (0, 1], or trainer.check_val_every_n_epoch=null"
    ),
}
"""What is said of a ValueError of torch or Lightning, by words in it."""


Change = Callable[[Federation], Federation]
"""Gives what runs in place of a simulation."""


def no_change(federation: Federation) -> Federation:
    """The simulation."""
    return federation


def run_experiment(
    phases: list[Phase],
    job: HydraJob,
    world: World,
    requests: StopRequests,
    *,
    change: Change = no_change,
) -> float | None:
    """Build a federation from a checked config and run it, as one rank of a world.

    `change` gives what runs in its place.

    Returns:
        `optimized_metric` after the last round.

    Raises:
        ConfigError: if data, model or devices refuse the settings on any rank, or if the
            training diverges.
        StoppedError: if a rank received a stop request.
    """
    decided = decide(phases[0].config, job.folder, world)
    if decided.becomes == "unchanged":
        return decided.value
    federation = change(build(phases, job, world, requests, decided.checkpoints))
    try:
        history = federation.run()
    except (DivergedError, MisconfigurationException, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error
    except (UnreadableImageError, OneRankError) as error:
        # In a worker process of the loader, the message follows a traceback.
        raise OneRankError(str(error).strip().splitlines()[-1]) from error
    except ValueError as error:
        known = next((said for sign, said in _KNOWN_ERRORS.items() if sign in str(error)), None)
        if known is None:
            raise
        raise OneRankError(known) from error
    except Exception as error:
        message = own_failure(error)
        if message is None:
            raise
        raise OneRankError(message) from error
    finally:
        end_records(federation.loggers)
    site = federation.engine.site
    value = history[-1].get(optimized_metric(phases[0].config, site.module, site.data))
    return None if value is None else float(value)
