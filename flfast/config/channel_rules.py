"""Rules about what clients send: privacy, compression, secure aggregation. Torch-free."""

from collections.abc import Callable, Iterable
from importlib.util import find_spec

from flfast.config.rule import Config, Rule, choice, shown

OPTION_NEEDS = {
    "central": ("sums", "one bound"),
    "dp_ftrl": ("sums", "one bound"),
    "local": ("one bound",),
    "dp_sgd": ("equal steps",),
}
"""`Privacy.needs` of our options at most, which are known before their objects are made."""

_SUMS = {
    "aggregation": ("mean", "the noise is calibrated for a mean"),
    "pace": ("sync", "its accountant counts rounds of whole cohorts"),
    "selection": ("none", "it reads from clients what the noise does not hide"),
}
"""What noise of the server needs: option and reason, by group."""


def _privacy(config: Config) -> str | None:
    return unmet(OPTION_NEEDS.get(choice(config["privacy"]), ()), config)


def unmet(needs: Iterable[str], config: Config) -> str | None:
    """The first problem of a privacy with the other settings of a run; None if there is none.

    Args:
        needs: of the privacy; see `Privacy.needs`.
        config: of the run.
    """
    name = choice(config["privacy"])
    problems = (_NEEDS[need](config, name) for need in sorted(needs))
    return next((problem for problem in problems if problem is not None), None)


def _sums(config: Config, name: str) -> str | None:
    for group, (needed, reason) in _SUMS.items():
        if (chosen := choice(config[group])) != needed:
            return (
                f"privacy={name} with {group}={chosen}: {reason}; allowed: {group}={needed}, "
                f"or privacy=local"
            )
    if config["pace"].get("keep_first") is not None:
        return (
            f"pace.keep_first={config['pace']['keep_first']} with privacy={name}: a client "
            f"that takes part puts another one out, which the noise does not hide; allowed: "
            f"pace.keep_first=null"
        )
    return None


def _packages(config: Config) -> str | None:
    privacy, name = config["privacy"], choice(config["privacy"])
    if name != "none" and not find_spec("dp_accounting"):
        return f"privacy={name}: dp-accounting is not installed; install flfast[privacy]"
    if privacy.get("secure") and not find_spec("cryptography"):
        return "privacy.secure=True: cryptography is not installed; install flfast[privacy]"
    return None


_OF_STEPS = ("batch_size", "last_batch", "local_epochs", "local_steps", "trainer.accumulate")


def _equal_steps(config: Config, name: str) -> str | None:
    """What DP-SGD's sensitivity and its number of passes rest on."""
    schedule, accumulate = config["schedule"], config["trainer"]["accumulate_grad_batches"]
    wrong = {
        "batch_size=auto": (config["batch_size"] == "auto", "a number, or -1"),
        "last_batch=pad": (config["last_batch"] == "pad", "last_batch=keep or last_batch=drop"),
        f"trainer.accumulate_grad_batches={accumulate}": (
            accumulate != 1,
            "1, with a larger batch_size and privacy.micro_batch",
        ),
        "schedule.adapt": (schedule["adapt"] is not None, "schedule.adapt=null"),
    }
    for number, phase in enumerate(schedule["phases"]):
        # Hydra adds to or replaces a key with + or ++ in front.
        changed = [o for o in phase["overrides"] if str(o).lstrip("+").startswith(_OF_STEPS)]
        key = f"schedule.phases[{number}]: {', '.join(map(str, changed))}"
        wrong[key] = (bool(changed), f"phases that do not change {', '.join(_OF_STEPS[:-1])}")
    for key, (is_wrong, allowed) in wrong.items():
        if is_wrong:
            return (
                f"{key} with privacy={name}: its noise and its accountant need steps of one size, "
                f"in which no example is twice; allowed: {allowed}"
            )
    return None


def _one_bound(config: Config, name: str) -> str | None:
    if config["upload_clip_norm"] is None:
        return None
    return (
        f"upload_clip_norm={shown(config['upload_clip_norm'])} with privacy={name}: the bound is "
        f"privacy.clip_norm; use upload_clip_norm=null"
    )


_NEEDS: dict[str, Callable[[Config, str], str | None]] = {
    "sums": _sums,
    "equal steps": _equal_steps,
    "one bound": _one_bound,
}


def _statistics(config: Config) -> str | None:
    name = choice(config["privacy"])
    if name != "none" and config["bn"] == "recalibrate":
        return (
            f"bn=recalibrate with privacy={name}: the server would get statistics without noise; "
            f"use model.norm=group, or another bn"
        )
    return None


def _secure(config: Config) -> str | None:
    name = choice(config["secure"])
    if name == "none":
        return None
    needed = {
        "aggregation": ("mean", "it needs every upload"),
        "compression": ("none", "sums of messages cannot be decoded"),
        "pace": ("sync", "keys are agreed on by a whole cohort"),
        "selection": ("none", "it reads uploads of single clients"),
    }
    for group, (allowed, reason) in needed.items():
        if (chosen := choice(config[group])) != allowed:
            return (
                f"{group}={chosen} with secure={name}: {reason}, and the server gets nothing but "
                f"their sum; allowed: {group}={allowed}, or secure=none"
            )
    if config["upload_clip_norm"] is not None:
        return (
            f"upload_clip_norm={shown(config['upload_clip_norm'])} with secure={name}: the server "
            f"does not see the length of an upload; use privacy.clip_norm, or secure=none"
        )
    if config["faults"].get("broken"):
        return (
            f"faults.broken={config['faults']['broken']} with secure={name}: the server cannot "
            f"check a masked upload, and a broken one breaks the sum; use faults.broken=0"
        )
    if not find_spec("cryptography"):
        return f"secure={name}: cryptography is not installed; install flfast[secure]"
    return None


def _compression(config: Config) -> str | None:
    pace = choice(config["pace"])
    if config["compression"].get("downloads") and pace != "sync":
        return (
            f"compression.downloads=True with pace={pace}: clients train from older versions; "
            f"use pace=sync or compression.downloads=false"
        )
    return None


def _audit(config: Config) -> str | None:
    name, mode = choice(config["audit"]), config["mode"]
    if name == "none":
        return None
    if mode == "local_only":
        return f"audit={name} with mode=local_only: there is no server; use audit=none"
    if name != "gradient_inversion":
        return None
    if mode == "centralized":
        return f"audit={name} with mode={mode}: nothing is sent; use audit=membership or none"
    if (secure := choice(config["secure"])) != "none":
        return (
            f"audit={name} with secure={secure}: the server gets no upload of one client, and the "
            f"attack needs one; use audit=membership, or secure=none"
        )
    return None


CHANNEL_RULES: tuple[Rule, ...] = (
    _privacy,
    _packages,
    _statistics,
    _secure,
    _compression,
    _audit,
)
