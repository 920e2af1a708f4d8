"""On the published one-GPU tables REX's curves predict better than the rivals, and the rivals as they are known to."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import _curve_rivals as rivals
from benchmarks.curves import Measured, answer, errors, one_gpu, questions
from tests.published import needs_data, published

KNOWN = {"linear": 6.86, "natural_cubic": 8.72, "pchip": 6.04, "smoothing": 4.34}
"""Mean leave-one-out error in percent, of independent fits on Sia's tables."""


@needs_data
def test_leaving_sizes_out_anchors_and_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {name: rivals.MODELS[name] for name in ("spline", *KNOWN)}
    monkeypatch.setattr("benchmarks.curves.MODELS", chosen)
    curves = [c for c in one_gpu(published()) if c.source == "sia"]
    assert len(curves) == 30
    answers = answer([q for curve in curves for q in questions(curve)])
    for name, mean in KNOWN.items():
        assert errors(answers, name, "loo").mean() == pytest.approx(mean, abs=0.01)
    common = [a for a in answers if "smoothing" in a.errors]
    assert errors(common, "spline", "loo").mean() < errors(common, "smoothing", "loo").mean()
    for kind, most in (("loo", 4.8), ("4", 5.3), ("5", 4.6), ("beyond", 9.0)):
        ours = errors(answers, "spline", kind)
        assert ours.mean() <= most
        assert all(ours.mean() < errors(answers, name, kind).mean() for name in KNOWN if name != "smoothing")


def test_questions_leave_out_what_they_ask_for() -> None:
    sizes = np.array([8.0, 16, 32, 64, 128, 256, 512])
    curve = Measured("x", "m", "d", sizes, 0.01 + sizes)
    asked = list(questions(curve))
    assert [q.kind for q in asked] == ["loo"] * 5 + ["4", "5", "beyond"]
    for question in asked:
        assert not (question.known & question.asked).any()
    assert sizes[asked[-1].known].max() == 256 and sizes[asked[-1].asked] == [512]
    assert sizes[asked[5].known].tolist() == [8, 32, 128, 512]


@pytest.mark.parametrize("name", sorted(rivals.MODELS))
def test_every_model_meets_a_straight_line(name: str) -> None:
    sizes = np.array([8.0, 16, 32, 64, 128])
    found = rivals.MODELS[name](sizes, 0.01 + 0.001 * sizes)
    assert found(np.array([24.0, 96.0])) == pytest.approx([0.034, 0.106], rel=0.04)
