"""The runner of benchmarks: contenders in processes, results as JSON, the page; nothing depends on speed."""

import dataclasses
import importlib
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from benchmarks import bars, epoch_end, plot, report, soak, suites, zoo
from benchmarks.contenders import ContenderError, ContenderProcess, alternate, processes
from benchmarks.options import Options
from benchmarks.results import OURS, Case, Results, new_results

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def test_the_page_is_what_the_results_say():
    page = report.PAGE.read_text("utf-8")
    assert page == report.page_with(report.generated(report.read_all()), page), "run python -m benchmarks.report"


def test_every_suite_exists_and_every_bar_names_one():
    for name in suites.SUITES:
        assert callable(importlib.import_module(f"benchmarks.{name}").run)
    assert set(bars.suites_with_bars()) <= set(suites.SUITES)


def test_contenders_take_turns():
    order = []
    values = alternate({name: lambda name=name: order.append(name) or len(order) for name in "ab"}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert values == {"a": [1, 4, 5], "b": [2, 3, 6]}


CONTENDER = """
from benchmarks.contenders import serve

def double(number):
    print("a library prints")
    return 2.0 * number

serve({"double": double})
"""


def test_a_contender_in_a_process_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "benchmark_contender.py").write_text(CONTENDER, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with processes(one=ContenderProcess("benchmark_contender"), none=None) as running:
        assert list(running) == ["one"]
        assert [running["one"].ask("double", number=number) for number in (1, 4)] == [2.0, 8.0]
        with pytest.raises(ContenderError, match="KeyError"):
            running["one"].ask("unknown")


def case(**values):
    return Case("a network", "steps/s", values)


def test_medians_spread_and_ratios():
    found = case(fit=[100, 200, 300, 400], **{OURS: [300, 400, 300, 400]})
    assert (found.median("fit"), found.spread("fit")) == (250, 150)
    assert found.ratio("fit") == pytest.approx((1.0 + 2.0) / 2)  # the median of 3, 2, 1, 1
    times = Case("a start", "s", {"fit": [4.0], OURS: [2.0]})
    assert times.ratio("fit") == 2.0


def test_results_as_json_figures_and_a_picture(tmp_path):
    curve = [Case(f"rows: {x}", "s", {OURS: [x / 1e6]}, "rows", x) for x in (10, 100)]
    results = new_results("mlp", [case(fit=[200.0, 210.0], **{OURS: [100.0, 110.0]}), *curve], 2, device=False)
    results.write(tmp_path / "mlp.json")
    assert Results.read(tmp_path / "mlp.json") == results
    assert {"processor", "cores", "python"} <= set(results.machine)
    figures = report.generated([results])
    assert "| a network | 205 ± 2 (0.51) | 105 ± 2 |" in figures.replace("± 2.5", "± 2")
    assert "- mlp, a network: 0.51 times fit" in figures
    assert "| rows | 10 µs | 100 µs |" in figures
    plot.draw(results, tmp_path / "mlp.svg")
    assert (tmp_path / "mlp.svg").read_text("utf-8").startswith("<?xml")


def test_bars(monkeypatch, capsys):
    monkeypatch.setattr(bars, "BARS", {("mlp", "a network"): {"fit": 3.0, "Orbit": 1.0}})
    assert bars.failures(Results("mlp", [case(fit=[1.0], **{OURS: [4.0]})], 1)) == []
    below = bars.failures(Results("mlp", [case(fit=[2.0], **{OURS: [4.0]})], 1))
    assert below == ["mlp: a network: 2.00 times fit, bar 3.0"]
    assert "NOT PASSED" in capsys.readouterr().out


def test_a_bar_of_growth(capsys):
    (series,) = {name for _, name in bars.EXPONENTS if name.startswith("a restore")}
    curve = [Case(f"{x}", "s", {OURS: [x / 1e6]}, series, x, {"exponent": x}) for x in (1.1, 1.9)]
    assert bars.failures(Results("growth", curve, 1)) == [f"growth: {series}: exponent 1.9, bar 1.2"]
    assert "passed  growth" in capsys.readouterr().out


def test_programs_of_others_are_suites():
    cases = suites.cases_of(
        "gpt2", {"name": "124 M", "unit": "ms", "values": {"fit": 68.0, OURS: [66, 67]}, "mfu": 0.4}
    )
    assert cases[0].values == {"fit": [68.0], OURS: [66, 67]}
    assert cases[0].notes == {"mfu": 0.4}
    assert suites.cases_of("startup", {"median": 3.0})[0].notes == {"median": 3.0}


def test_the_slope_of_the_second_half():
    warming_up = [(float(second), 500.0 + min(second, 30) * 10) for second in range(60)]
    assert soak.slope(warming_up) == pytest.approx(0.0, abs=1e-6)
    assert soak.slope([(float(second), second / 6) for second in range(60)]) == pytest.approx(10.0)


def test_the_memory_of_long_runs(tmp_path):
    for name, size in (("fit", 600.0), (f"{OURS}, one run", 500.0), ("fit", 700.0)):
        notes = {"steps": 1000, "mb_per_minute": 0.5, "samples": [[60.0 * minute, size] for minute in range(1, 9)]}
        soak.add_to(tmp_path / "soak.json", Case(name, "MB", {}, notes=notes))
    results = Results.read(tmp_path / "soak.json")
    figures = report.generated([results])
    assert "| fit | 8 | 1,000 | 700 | 700 | 700 | 700 | 0.50 |" in figures
    assert "| 600 |" not in figures
    plot.draw(results, tmp_path / "soak.svg")


def test_growth_marks_what_grows_too_fast():
    from benchmarks.growth import _with_exponents

    square = [Case(f"{x}", "s", {OURS: [x**2 / 1e6]}, "square", x) for x in (10, 100)]
    assert _with_exponents(square)[-1].notes == {"exponent": 2.0, "grows worse than it should": True}


def test_small_options_take_small_sizes():
    from benchmarks.growth import _sizes

    assert _sizes(Options(), 1, 10, 100) == [1, 10]
    assert _sizes(Options(large=True), 1, 10, 100) == [1, 10, 100]
    assert _sizes(Options(steps=5), 1, 10, 100) == [1]


@pytest.mark.full
@pytest.mark.backend
def test_a_tiny_suite(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "mlp", "--rounds", "1", "--steps", "100", "--backends", "jax"]
    done = subprocess.run([*command, "--json", str(tmp_path / "mlp.json")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1 where a ratio is below its bar, which depends on the machine
    found = json.loads((tmp_path / "mlp.json").read_text("utf-8"))
    assert [len(case["values"]) for case in found["cases"]] == [4, 4]


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.parametrize("program", ["hub", "gpt2"])
def test_a_program_for_a_large_gpu_runs_in_small(program):
    command = [sys.executable, "-m", f"benchmarks.{program}", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cases = json.loads(done.stdout.splitlines()[-1])
    assert all(case["values"] for case in cases.get("cases", [cases]))


@pytest.mark.full
@pytest.mark.backend
def test_where_the_time_of_a_step_goes_on_pytorch(tmp_path):
    command = [sys.executable, "-m", "benchmarks.torch_where", "MLP", "--small", "--json", str(tmp_path / "where.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "where.json").read_text("utf-8"))["models"]["MLP"]
    assert set(found["step_ms"]) == set(found["eager_ms"]) > {"all", "none"}
    assert found["operations"]["all"]["aten::_fused_adam_"][0] == 1
    assert "aten::_fused_adam_" not in found["operations"]["none"]


@pytest.mark.full
@pytest.mark.backend
def test_what_the_end_of_an_epoch_costs():
    command = [sys.executable, "-m", "benchmarks.epoch_end", "MLP", "--small", "--steps", "4", "--epochs", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    parts = {variant: found[variant]["ms per epoch"] for variant in epoch_end.VARIANTS}
    assert [parts[variant]["save"] > 0 for variant in epoch_end.VARIANTS] == [False, False, True]
    assert all(parts[variant]["steps"] > 0 for variant in epoch_end.VARIANTS[1:])


@pytest.mark.full
@pytest.mark.timeout(1200)  # a dozen processes that each compile a model
def test_each_contender_of_the_zoo_trains_alone_and_ours_repeats_itself(tmp_path):
    options = Options(rounds=1, steps=4, models=("MLP",), backends=("jax", "torch"), json=tmp_path / "zoo.json")
    measured = zoo.measure(options)
    assert zoo.read(tmp_path / "zoo.jsonl") == measured
    assert not [figures["error"] for figures in measured.values() if "error" in figures]
    for case in zoo.cases(measured):
        backend = "jax" if case.name.startswith("JAX") else "torch"
        assert set(case.values) == set(zoo.CONTENDERS[backend])
        assert all(value > 0 for values in case.values.values() for value in values)
    ours = measured["jax", "MLP", OURS, 0]
    assert ours["second_first_epoch"] > 0
    assert ours["second_digest"] not in (None, ours["digest"])
    again = zoo.trained("jax", "MLP", OURS, options, math.inf)
    assert (again["digest"], again["second_digest"]) == (ours["digest"], ours["second_digest"])


def test_the_zoo_goes_on_where_it_was_stopped(tmp_path, capsys):
    asked = []

    def started(backend, model, contender, options, seconds):
        asked.append((model, contender))
        if len(asked) == 3:
            raise subprocess.TimeoutExpired("zoo_process", seconds)
        if len(asked) == 4:
            return {"error": "out of memory"}
        return {"step_ms": 10.0 * len(asked), "first_epoch": 2.0, "peak_bytes": 8, "digest": "a", "second_digest": "b"}

    options = Options(rounds=1, backends=("jax",), models=("U-Net", "MLP"), json=tmp_path / "zoo.json")
    contenders = list(zoo.CONTENDERS["jax"])
    every = [(model, contender) for model in options.models for contender in contenders]
    zoo.measure(options, started)
    assert asked == every
    resumed = dataclasses.replace(options, resume=True)
    measured = zoo.measure(resumed, started)
    assert asked[len(every) :] == [every[2], every[3]]  # what ran out of time, and what failed
    assert len(measured) == len(every)
    assert zoo.measure(dataclasses.replace(resumed, minutes=-1.0), started) == measured
    table = zoo.table(measured).splitlines()
    assert [line.split()[:2] for line in table[1:3]] == [["jax", "U-Net"], ["jax", "MLP"]]
    assert zoo.measure(dataclasses.replace(options, minutes=-1.0), started) == {}
    assert "jax, MLP, fit, round 1: not in the time that is left" in capsys.readouterr().out


def test_the_table_of_the_zoo_compares_with_the_best_of_each():
    ours = {"step_ms": 10.0, "first_epoch": 3.0, "second_first_epoch": 1.0, "peak_bytes": 9}
    others = {"fit": 50.0, "PyTorch": 8.0, "PyTorch, deterministic": 12.0, "PyTorch, compiled": 9.0}
    measured = {("torch", "MLP", name, 0): {"step_ms": ms, "first_epoch": 2.0} for name, ms in others.items()}
    measured["torch", "MLP", OURS, 0] = {**ours, "exactness": {"level": "certified"}, "said": ["bits may differ"]}
    measured["torch", "U-Net", "fit", 0] = {"error": "out of memory"}
    head, row, empty, *remarks = zoo.table(measured).splitlines()
    assert head.split()[-7:] == list(zoo.HEAD[-7:])
    assert " ".join(row.split()[2:]) == "50 8 12 10 5 1.2 0.8 1.5 0.5 - certified, 1 of 1"
    assert empty.split()[:3] == ["torch", "U-Net", "-"]
    assert remarks == [
        "torch, MLP, Everstep, round 1 said: bits may differ",
        "torch, U-Net, fit, round 1: out of memory",
    ]


@pytest.mark.full
@pytest.mark.backend
def test_plain_pytorch_has_the_sizes_of_the_zoo(tmp_path):
    if keras.backend.backend() != "torch":
        pytest.skip("on PyTorch")
    from benchmarks import zoo_models, zoo_torch

    assert set(zoo_torch.MODELS) == set(zoo_models.MODELS)
    for name, create in zoo_torch.MODELS.items():
        if name in zoo.OF_TORCHVISION and importlib.util.find_spec("torchvision") is None:
            continue
        expected = sum(math.prod(one.shape) for one in zoo_models.build(name, True, 1).model.trainable_variables)
        found = sum(parameter.numel() for parameter in create(True).parameters())
        assert found == pytest.approx(expected, rel=0.03), name


def test_the_zoo_names_the_models_that_exist():
    from benchmarks import zoo_models

    assert set(zoo.MODELS) == set(zoo_models.MODELS)
    assert zoo_models.build("MLP", small=True, batches=2).x.shape == (16, 784)
