// Learning curves over all attempts; of several runs on top of each other.

function curvesSection() {
  const names = [...new Map(data.runs.flatMap((run) => run.curves.map((curve) => [curve.name, curve.side]))).entries()];
  if (!names.length) return null;
  const attempts = data.runs.reduce((sum, run) => sum + run.marks.length, 0);
  const note = attempts ? "Dotted lines: where a later attempt went on." : null;
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
      steps: one.steps, values: one.values,
    }));
  });
  const marks = data.runs.flatMap((run) => run.marks.map((mark) => (several ? { ...mark, text: `${run.name}, ${mark.text}` } : mark)));
  return lineChart(name, series, marks, logarithmic);
}
