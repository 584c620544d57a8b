"""No audit."""

from flfast.audits.audit import NO_AUDIT, Audit


def none() -> Audit:
    """Nothing is attacked."""
    return NO_AUDIT
