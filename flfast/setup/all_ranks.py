"""Building in step: what stops one rank stops all of them, with the same message."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from hydra.errors import InstantiationException
from lightning.fabric.utilities.exceptions import MisconfigurationException

from flfast.config.errors import ConfigError
from flfast.distributed.world import World, gather
from flfast.setup.user_code import own_failure

T = TypeVar("T")


def on_all_ranks(world: World, work: Callable[..., T] | None, *args: Any) -> T:
    """Run `work(*args)`, where it is not None, and return this rank's result; collective.

    Raises:
        ConfigError: on every rank, if the settings are refused on any of them.
    """
    result: T | None = None
    message: str | None = None
    failure: Exception | None = None
    try:
        result = work(*args) if work else None
    except (ValueError, TypeError, OSError, MisconfigurationException, ConfigError) as error:
        message, failure = str(error), error
    except InstantiationException as error:
        message, failure = str(error.__cause__ or error), error
    except MemoryError as error:
        message, failure = f"data or model are larger than the memory: {error}", error
    except Exception as error:
        message, failure = own_failure(error), error
        if message is None:
            # A bug, not a wrong setting. The other ranks must not wait for this one.
            gather(world, (f"{type(error).__name__}: {error}", True))
            raise
    messages = gather(world, (message, work is not None))
    common = len({message for message, worked in messages if worked}) == 1
    for rank, (refusal, _) in enumerate(messages):
        if refusal is not None:
            raise ConfigError(refusal if common else f"rank {rank}: {refusal}") from failure
    return cast(T, result)
