"""What a run leaves to look at: the report and the model card, for classes, numbers and masks."""

import errno
import html
import json
import re

import pytest
import yaml
from pages_project import DESCRIBED, HOSTILE, write_project, write_run

from everstep import storage
from everstep.components import Orchestrator
from everstep.projects.components import orchestrator
from everstep.projects.components.config import ConfigStruct
from everstep.projects.components.evaluation import write_pages
from everstep.projects.components.orchestrator import create_tracking
from everstep.projects.components.run_folder import RunFolder
from everstep.projects.project_tracking import Tracking
from everstep.testing.problems import raises_problem
from everstep.testing.servers.mlflow_server import MlflowServer, client_of, memory_folder, runs_of
from everstep.testing.servers.proxy import Proxy
from everstep.tracking.mlflow import spool_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
pytest_plugins = ("tests.report.conftest",)


class Recorded(Tracking):
    def __init__(self):
        self.kept = []

    def files(self, paths):
        self.kept.append(sorted(path.name for path in paths))


@pytest.fixture(scope="module")
def tracked():
    return Recorded()


@pytest.fixture(scope="module")
def project(tmp_path_factory, tracked):
    """The three problems, each from its config file to its pages."""
    root = tmp_path_factory.mktemp("project")
    write_project(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orchestrator, "create_tracking", lambda *_: tracked)
        for problem in ("classes", "numbers", "masks"):
            write_run(root, problem, **(DESCRIBED if problem == "classes" else {"epochs": 1}))
            Orchestrator(problem, root, verbose=False).run()
        yield root


def page_data(folder):
    """What the report was given to show."""
    text = (folder / "reports" / "report.html").read_text("utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    (run,) = json.loads(data)["runs"]
    return run, {split["split"]: split for split in run["splits"]}


def table(split):
    return {column["name"]: column["values"] for column in split["table"]["columns"]}


def test_classes(project):
    run, splits = page_data(project / "runs" / "classes")
    means = json.loads((project / "runs" / "classes" / "reports" / "metrics.json").read_text())
    assert run["name"] == "classes"
    headline = {(figure["split"], figure["name"]): figure["value"] for figure in run["headline"]}
    assert headline["test", "loss"] == means["test"]["model.evaluate"]["loss"]
    assert headline["validation", "cross_entropy"] == means["validation"]["eval_funcs"]["cross_entropy"]
    curves = {curve["name"]: curve for curve in run["curves"]}
    assert {"loss", "accuracy"} <= set(curves)
    assert [(each["kind"], each["steps"]) for each in curves["loss"]["series"]] == [
        ("train", [3, 6]),
        ("validation", [3, 6]),
    ]
    assert (splits["test"]["kind"], splits["test"]["rows"], splits["validation"]["rows"]) == ("classification", 13, 20)
    assert splits["test"]["classes"] == ["upper", "middle", "lower"]
    assert sum(count for *_, count in splits["test"]["confusion"]["cells"]) == 13
    assert sum(row["support"] for row in splits["test"]["by_class"]) == 13


def test_pictures_of_flat_inputs_and_slices_by_columns_of_the_evaluator(project):
    _, splits = page_data(project / "runs" / "classes")
    pictures = [sample["input"] for sample in splits["test"]["samples"]]
    assert len(pictures) == 13
    assert all(picture["image"].startswith("data:image/png;base64,") for picture in pictures)
    slices = {each["column"]: each["groups"] for each in splits["test"]["slices"]}
    assert {group["value"]: group["count"] for group in slices["side"]} == {"left": 8, "right": 5}
    assert 0 < min(table(splits["test"])["brightness"]) < max(table(splits["test"])["brightness"]) < 1
    assert table(splits["test"])["id"][:2] == ["right_0", "left_1"]
    assert set(table(splits["validation"])["side"]) == {"none"}  # its ids are counted
    assert "side" not in (project / "runs" / "classes" / "eval_report.csv").read_text()


def test_numbers(project):
    run, splits = page_data(project / "runs" / "numbers")
    assert {"loss", "mae"} <= {curve["name"] for curve in run["curves"]}
    assert splits["test"]["kind"] == "regression"
    assert splits["test"]["residuals"] is not None
    assert len(splits["test"]["samples"][0]["input"]["values"]) == 4
    assert {"label", "prediction", "absolute_error"} <= set(table(splits["test"]))


def test_masks(project):
    _, splits = page_data(project / "runs" / "masks")
    assert splits["validation"]["kind"] == "segmentation"
    for part in ("input", "target", "output"):
        assert all("image" in sample[part] for sample in splits["validation"]["samples"])


@pytest.mark.parametrize("problem", ["classes", "numbers", "masks"])
def test_the_card_says_what_the_files_say(project, problem):
    folder = project / "runs" / problem
    text = (folder / "README.md").read_text("utf-8")
    page = (folder / "model-card" / "model_card.html").read_text("utf-8")
    shown = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for split in ("validation", "test"):
        found = json.loads((folder / "reports" / f"{split}.json").read_text())
        for metric in found["metrics"]:
            for written in (text, shown):
                means = re.findall(rf"(\d\S*)\s+\({metric['count']}\)", written)
                assert any(float(mean) == pytest.approx(metric["mean"], rel=1e-2) for mean in means), means
    pictures = re.findall(r"\]\((model-card/histograms/[^)]+\.svg)\)", text)
    assert len(pictures) == page.count("<svg") == (4 if problem == "classes" else 2)
    assert all((folder / picture).is_file() for picture in pictures)
    assert len(list((folder / "model-card" / "histograms").iterdir())) == len(pictures)
    epochs = yaml.safe_load((folder / "config.yaml").read_text())["epochs"]
    best = json.loads((folder / "exported" / "export.json").read_text())["epoch"]
    assert f"| best epoch | {best + 1:.0f} of {epochs} |" in text
    started = json.loads((folder / "run.json").read_text())["attempts"][0]["started"]
    assert f"| date | {started[:10]} |" in text


def test_the_lines_that_load_the_model_load_it(project, monkeypatch):
    """They are run as they stand in the card, in the project's folder."""
    folder = project / "runs" / "classes"
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    monkeypatch.chdir(project)
    names = {"x": [[0.5] * 144] * 2}
    exec(code, names)
    assert names["y_pred"].shape == (2, 3)


def test_the_same_again_and_nothing_of_others(project, tracked):
    folder = project / "runs" / "classes"
    watched = ["README.md", "model-card/model_card.html", "reports/report.html"]
    watched += [f"model-card/histograms/{path.name}" for path in (folder / "model-card" / "histograms").iterdir()]
    before = {name: (folder / name).read_bytes() for name in watched}
    for left in ("reports/.everstep-0123-report.html", "model-card/.everstep-0123-model_card.html"):
        (folder / left).write_text("half")
    (folder / "model-card" / ".everstep-0123-histograms").mkdir()
    Orchestrator("classes", project, verbose=False).evaluate()
    assert {name: (folder / name).read_bytes() for name in watched} == before
    assert not list(folder.rglob(".everstep-*"))
    rows = ["eval_report.csv", "eval_report_summary.csv", "validation_report.csv"]
    assert tracked.kept[0] == tracked.kept[-1] == sorted(["README.md", *rows, "model_card.html", "report.html"])

    (folder / "README.md").write_text("# My notes\n")
    write_pages(RunFolder(project, "classes"), _config(folder), tracked)
    assert (folder / "README.md").read_text() == "# My notes\n"
    assert (folder / "MODEL_CARD.md").read_bytes() == before["README.md"]
    assert "MODEL_CARD.md" in tracked.kept[-1]
    (folder / "README.md").unlink()
    write_pages(RunFolder(project, "classes"), _config(folder), tracked)
    assert (folder / "README.md").read_bytes() == before["README.md"]
    assert not (folder / "MODEL_CARD.md").exists()


def _config(folder):
    return ConfigStruct(yaml.safe_load((folder / "config.yaml").read_text()))


def test_a_full_disk_costs_the_pages_and_nothing_else(project, tracked, monkeypatch, caplog):
    folder = project / "runs" / "numbers"
    write = storage.write_bytes

    def full(path, data):
        if str(path).endswith(".html"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    rows = (folder / "eval_report.csv").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_bytes", full)
        results = Orchestrator("numbers", project, verbose=False).evaluate()
    assert results["test"]["eval_funcs"]["absolute_error"] > 0
    assert (folder / "eval_report.csv").read_bytes() == rows
    assert not (folder / "reports" / "report.html").exists()  # none is better than that of another evaluation
    shown = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.split(" could not")[0] for message in shown] == ["the report", "the model card"]
    assert all("No space left on device" in message and "evaluate again" in message for message in shown)
    assert "report.html" not in tracked.kept[-1]
    write_pages(RunFolder(project, "numbers"), _config(folder), tracked)
    assert (folder / "reports" / "report.html").is_file()


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (
            "return 3",
            {"key": "evaluator_class", "reason": "must return a dict of numbers and texts, but returned 3 for '0'"},
        ),
        ("return {data_id: 1}", {"key": "evaluator_class", "reason": "must return a dict with the keys '0'"}),
        (
            "return {'loss': 1 / 0}",
            {"key": "evaluator_class", "reason": r"problems.Regressed.get_columns\(\).*ZeroDivision"},
        ),
        ("return {'label': 1}", {"key": "columns", "received": "label", "reason": "is a column of the table"}),
    ],
)
def test_columns_that_are_none(project, monkeypatch, body, fields):
    source = project / "src" / "problems.py"
    text = source.read_text()
    changed = f"class Regressed(EvaluatorBase):\n    def get_columns(self, x, y, data_id):\n        {body}\n"
    source.write_text(text.replace("class Regressed(EvaluatorBase):\n", changed))
    try:
        with raises_problem(**fields) as refused:
            Orchestrator("numbers", project, verbose=False).evaluate()
    finally:
        source.write_text(text)
    assert "\n" not in str(refused.value)


def test_files_for_mlflow_are_noted_once(project, monkeypatch, tmp_path):
    """The spool has each file once, whatever the server does; one that has changed once more."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    folder = RunFolder(tmp_path, "a")
    folder.path.mkdir(parents=True)
    tracking = create_tracking(folder, ConfigStruct({"project_name": "small"}), tmp_path)
    paths = [folder.path / "README.md", folder.path / "eval_report.csv"]
    for text in ("1", "1", "2"):
        for path in paths:
            path.write_text(text if path.suffix == ".md" else "")
        tracking.files(paths)
    tracking.close()
    noted = [record["path"] for record in spool_of(folder.path).records() if record["type"] == "artifact"]
    assert noted == ["README.md", "eval_report.csv", "README.md"]


@pytest.mark.full
def test_files_arrive_once_at_a_server_that_was_down(monkeypatch, tmp_path):
    with memory_folder() as memory, MlflowServer(memory).running() as server:
        server.wait()
        with Proxy(server.uri) as proxy:
            _files_through(proxy, monkeypatch, tmp_path)


def _files_through(proxy, monkeypatch, root):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    folder = RunFolder(root, "a")
    folder.path.mkdir(parents=True)
    card, rows = folder.path / "README.md", folder.path / "eval_report.csv"
    rows.write_text(",loss\n")
    for fault, text in (("refuse", "first"), ("none", "first"), ("none", "second, longer")):
        proxy.fault = fault
        card.write_text(text)
        tracking = create_tracking(folder, ConfigStruct({"project_name": "small"}), root)
        tracking.start()
        tracking.log_evaluation(0, {"test": {"eval_funcs": {"loss": 0.5}}})
        tracking.files([card, rows])
        tracking.close()
    (run,) = runs_of(proxy.uri, "small")
    found = {file.path: file.file_size for file in client_of(proxy.uri).list_artifacts(run.info.run_id)}
    assert found == {"README.md": len("second, longer"), "eval_report.csv": len(",loss\n")}
    assert run.data.metrics == {"test_loss": 0.5}
    noted = [record["path"] for record in spool_of(folder.path).records() if record["type"] == "artifact"]
    assert noted == ["README.md", "eval_report.csv", "README.md"]


def test_both_in_a_browser(project, page):
    driver = page(project / "runs" / "classes" / "reports" / "report.html")
    titles = driver.execute_script("return [...document.querySelectorAll('h2')].map(node => node.textContent)")
    assert titles == [
        *["Summary", "Learning curves", "Confusion", "Classes", "Distributions", "Worst samples", "Slices"],
        *["All samples", "Configuration"],
    ]
    widths = driver.execute_script(
        "return [...document.querySelectorAll('#samples img')].map(image => image.complete && image.naturalWidth)"
    )
    assert widths == [12] * 13
    assert driver.execute_script("return document.querySelectorAll('#curves path.line').length") > 1


@pytest.mark.parametrize("width", [1366, 390])
def test_the_card_in_a_browser(project, page, width):
    driver = page(project / "runs" / "classes" / "model-card" / "model_card.html", (width, 800))
    shown = driver.execute_script("return document.querySelector('.overview p').textContent")
    assert shown == HOSTILE
    assert driver.execute_script("return window.hacked") is None
    assert driver.execute_script("return document.querySelectorAll('script, img').length") == 0
    assert driver.execute_script("return document.querySelector('h1').textContent") == "Bars <b>"
    links = driver.execute_script("return [...document.querySelectorAll('.entries a')].map(link => link.href)")
    assert links == ["https://example.org/bars?a=1&b=2"]
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    heights = driver.execute_script("return [...document.querySelectorAll('svg')].map(svg => svg.clientHeight)")
    assert len(heights) == 4
    assert min(heights) > 100
