import pytest

from flfast.output.callbacks.curves import Curves
from flfast.output.callbacks.devices_figure import DevicesFigure
from flfast.output.callbacks.events_figure import EventsFigure
from flfast.output.callbacks.mask_samples import MaskSamples
from flfast.output.callbacks.partition_report import PartitionReport
from flfast.output.callbacks.run_picture import RunPicture, or_warn
from flfast.output.callbacks.text_samples import TextSamples

LOOK = {"dpi": 80, "formats": ["png"]}
TEXT = {"prompt": None, "num_samples": 1, "num_tokens": 1, "temperature": 1.0}


@pytest.mark.parametrize(
    ("callback", "hook"),
    [
        (Curves(**LOOK), "on_run_end"),
        (DevicesFigure(max_clients=9, **LOOK), "on_run_start"),
        (PartitionReport(max_clients=9, **LOOK), "on_run_end"),
        (EventsFigure(max_clients=9, max_steps=9, **LOOK), "on_run_end"),
        (MaskSamples(num_images=1, **LOOK), "on_run_end"),
        (TextSamples(**TEXT), "on_run_end"),
    ],
)
def test_a_file_that_cannot_be_made_is_a_warning(callback, hook, caplog):
    getattr(callback, hook)(None)  # no federation: each attribute is missing
    assert f"{callback.file_name} was not written: AttributeError" in caplog.text


def test_a_full_disk_is_raised():
    class Full(RunPicture):
        file_name = "full.png"

        @or_warn
        def on_run_end(self, federation):
            raise OSError(28, "No space left on device", "full.png")

    with pytest.raises(OSError, match="No space left"):
        Full(**LOOK).on_run_end(None)
