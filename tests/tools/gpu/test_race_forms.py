"""Which forms of a call the race times: those that launch something else on a device, and all of those."""

import contextlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from benchmarks.gpu import bench, forms, goals, host, warm  # noqa: E402
from ragsys_kernels._base import env as _env  # noqa: E402
from ragsys_kernels._gpu import plans, variants  # noqa: E402

pytestmark = pytest.mark.skipif(_env.triton_interpreter(), reason="tiles of the interpreter are others")


class Seen:
    """Stands in the place of what records a plan, and launches nothing."""

    def __init__(self):
        self.launches = []

    def launch(self, kernel, grid, arguments):
        plain = {name: x for name, x in arguments.items() if not isinstance(x, torch.Tensor)}
        self.launches.append((kernel.__name__, grid, tuple((name, str(x)) for name, x in plain.items())))

    def call(self, function, args, how):
        self.launches.append((function.__self__.name, *args, how["grid"], how["block"], how["shared"]))

    def counters(self, like, size):
        return torch.zeros(size, dtype=torch.int32)


@contextlib.contextmanager
def seen(monkeypatch):
    recorder = Seen()
    with host.stubbed(host.Driver()), monkeypatch.context() as patch:
        patch.setattr(plans._thread, "recorder", recorder, raising=False)
        yield recorder.launches


@pytest.fixture
def launched(monkeypatch):
    """What a form launches for a shape on an H100, with arrays of zeros."""

    def launches(shape, form):
        call = warm.calls(shape)[form.backend]
        with seen(monkeypatch) as found, form.entered():
            call()
        assert found
        return found

    return launches


GOALS = [pytest.param(goal, id=goal.title) for goal in goals.GOALS]


@pytest.mark.parametrize("goal", GOALS)
def test_the_forms_of_a_shape_launch_different_things(launched, goal):
    listed = forms.of(goal.shape)
    found = {form: tuple(launched(goal.shape, form)) for form in listed}
    assert len(set(found.values())) == len(listed)
    # The variants that are not listed make no difference.
    by_default = {form.backend: found[form] for form in listed if not form.variant and not form.change}
    for kernel, names in variants.VARIANTS.items():
        for variant in (f"{kernel}={name}" for name in names[1:]):
            for backend, default in by_default.items():
                form = forms.Form(backend, variant)
                if form not in listed:
                    assert tuple(launched(goal.shape, form)) == default, form.name


@pytest.mark.parametrize("goal", GOALS)
def test_the_other_libraries_of_a_shape_are_known_before_it_is_made(goal):
    """Those that torch has; others may not be installed."""
    small = goals.of(small=True)[goals.GOALS.index(goal)]
    entries, _ = bench.contenders_of(bench.problem_of(small.shape, "cpu"), forms.BACKENDS, host=False)
    others = {entry.name for entry in entries if not entry.backend} - {bench.COPY, bench.scoring.PRODUCT}
    assert set(forms.peers(goal.shape)) == others - {"Liger", "flash-attn", "TRL, entropy", "cut-cross-entropy"}
    assert set(goals.roofs(small)) <= {entry.name for entry in entries}
