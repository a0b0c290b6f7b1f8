// Learning curves over all attempts; several runs share a chart.

function curvesSection() {
  const names = [...new Map(data.runs.flatMap((run) => run.curves.map((curve) => [curve.name, curve.side]))).entries()];
  if (!names.length) return null;
  const attempts = data.runs.reduce((sum, run) => sum + run.marks.length, 0);
  const said = [attempts ? "Dotted lines: where a later attempt began." : "", data.runs.some((run) => run.exported) ? "Line with a flag: the epoch that was exported." : ""];
  const note = said.filter(Boolean).join(" ");
  const grid = element("div", { class: "charts" }), side = element("div", { class: "charts" });
  const draw = (logarithmic) => {
    grid.replaceChildren(...names.filter(([, isSide]) => !isSide).map(([name]) => curveChart(data.runs, name, logarithmic)));
    side.replaceChildren(...names.filter(([, isSide]) => isSide).map(([name]) => curveChart(data.runs, name, logarithmic)));
  };
  draw(false);
  return section("curves", "Learning curves",
    element("div", { class: "controls" }, tickbox("logarithmic", false, draw), note ? element("span", { class: "muted" }, note) : null), grid,
    side.children.length ? element("details", { class: "more" }, element("summary", {}, "Speed and learning rate"), side) : null);
}

// One metric of several runs; a run has the colour of its place, unless it brings its own number.
function curveChart(runs, name, logarithmic) {
  const several = runs.length > 1, unit = unitOf(runs);
  const colour = (run, place) => `run${(run.colour === undefined ? place : run.colour) % COLOURS}`;
  const series = runs.flatMap((run, place) => {
    const curve = run.curves.find((one) => one.name === name);
    return (curve ? curve.series : []).map((one) => ({
      name: several ? `${run.name}, ${one.kind}` : one.kind,
      colour: several ? colour(run, place) : `run${one.kind === "train" ? 1 : 0}`,
      dashed: several && one.kind === "train",
      steps: one.steps.map((step) => inUnit(run, step, unit)), values: one.values,
      ended: run.ended && !curve.side ? { step: inUnit(run, run.ended.step, unit), text: run.ended.text } : null,
    }));
  });
  const marks = runs.flatMap((run, place) => [
    ...run.marks, ...(run.exported ? [{ ...run.exported, colour: several ? colour(run, place) : "", flag: true }] : []),
  ].map((mark) => ({ ...mark, step: inUnit(run, mark.step, unit), text: several ? `${run.name}, ${mark.text}` : mark.text })));
  return lineChart(name, series, marks, logarithmic, unit);
}

// Runs that all log at the ends of epochs are shown over epochs, others over steps.
function unitOf(runs) {
  return runs.every((run) => run.steps_per_epoch || !run.curves.length) ? "epoch" : "step";
}

function inUnit(run, step, unit) {
  return unit === "epoch" ? step / run.steps_per_epoch : step;
}
