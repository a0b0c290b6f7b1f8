// Learning curves over all attempts; several runs share a chart.

function curvesSection() {
  const names = [...new Map(data.runs.flatMap((run) => run.curves.map((curve) => [curve.name, curve.side]))).entries()];
  if (!names.length) return null;
  const attempts = data.runs.reduce((sum, run) => sum + run.marks.length, 0);
  const said = [attempts ? "Dotted lines: where a later attempt began." : "", data.runs.some((run) => run.exported) ? "Line with a flag: the epoch that was exported." : ""];
  const note = said.filter(Boolean).join(" ");
  const grid = element("div", { class: "charts" }), side = element("div", { class: "charts" });
  const draw = (logarithmic) => {
    grid.replaceChildren(...names.filter(([, isSide]) => !isSide).map(([name]) => curveChart(name, logarithmic)));
    side.replaceChildren(...names.filter(([, isSide]) => isSide).map(([name]) => curveChart(name, logarithmic)));
  };
  draw(false);
  return section("curves", "Learning curves",
    element("div", { class: "controls" }, tickbox("logarithmic", false, draw), note ? element("span", { class: "muted" }, note) : null), grid,
    side.children.length ? element("details", { class: "more" }, element("summary", {}, "Speed and learning rate"), side) : null);
}

function curveChart(name, logarithmic) {
  const several = data.runs.length > 1;
  const series = data.runs.flatMap((run, place) => {
    const curve = run.curves.find((one) => one.name === name);
    return (curve ? curve.series : []).map((one) => ({
      name: several ? `${run.name}, ${one.kind}` : one.kind,
      colour: `run${several ? place % 6 : one.kind === "train" ? 1 : 0}`,
      dashed: several && one.kind === "train",
      steps: one.steps.map((step) => inUnit(run, step)), values: one.values,
      ended: run.ended && !curve.side ? { step: inUnit(run, run.ended.step), text: run.ended.text } : null,
    }));
  });
  const marks = data.runs.flatMap((run, place) => [
    ...run.marks, ...(run.exported ? [{ ...run.exported, colour: several ? `run${place % 6}` : "", flag: true }] : []),
  ].map((mark) => ({ ...mark, step: inUnit(run, mark.step), text: several ? `${run.name}, ${mark.text}` : mark.text })));
  return lineChart(name, series, marks, logarithmic, UNIT);
}

// Runs that all log at the ends of epochs are shown over epochs, others over steps.
const UNIT = data.runs.every((run) => run.steps_per_epoch || !run.curves.length) ? "epoch" : "step";

function inUnit(run, step) {
  return UNIT === "epoch" ? step / run.steps_per_epoch : step;
}
