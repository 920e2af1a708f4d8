from __future__ import annotations

import pytest
import torch

from rex_worker.loader import MapSource, Source
from rex_worker.recipe import recipe
from rex_worker.sampler import Outlook, Position
from rex_worker.streams import StreamSource
from tests.worker.readable import Drawn, DrawnStream

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.component,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("pin", [True, False])
def test_batches_that_were_read_ahead_arrive_on_the_device(kind: str, pin: bool) -> None:
    device = torch.device("cuda")
    source: Source
    if kind == "map":
        source = MapSource(recipe(Drawn(), num_workers=1, pin_memory=pin, shuffle=False), device, epochs=1)
    else:
        source = StreamSource(recipe(DrawnStream(), num_workers=1, pin_memory=pin), device)
    position = Position(3)
    for start in (0, 20, 40):
        layout = source.lay_out(Outlook(position, (20,), rank=0))
        batch = source.fetch(0)
        assert batch["x"].device.type == batch["drawn"][0].device.type == "cuda"
        assert batch["index"].tolist() == list(range(start, start + 20))
        position = position.advance(layout.total, ends_epoch=layout.ends_epoch)
    source.close()
