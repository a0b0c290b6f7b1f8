// Below the table: the curves of the ticked runs in one chart for each metric, and what differs between them.

const SECTIONS = { metrics: "Metrics", evaluations: "Evaluations", configuration: "Configuration", course: "Time and speed", surroundings: "Code, machine and data" };
const IN_WORDS = new Set(["metrics", "evaluations", "course"]); // the others name keys, which are shown as they are

function curvesOfChosen(runs, logarithmic, onscale) {
  const metrics = [...new Map(runs.flatMap((run) => run.curves.map((curve) => [curve.name, curve.side]))).entries()];
  const charts = metrics.filter(([, isSide]) => !isSide).map(([name]) => curveChart(runs, name, logarithmic));
  const side = metrics.filter(([, isSide]) => isSide).map(([name]) => curveChart(runs, name, logarithmic));
  return section("curves", "Learning curves",
    charts.length ? element("div", { class: "controls" }, tickbox("logarithmic", logarithmic, onscale), runs.length > 1 ? element("span", { class: "muted" }, "Solid: validation. Dashed: training.") : null) : element("p", { class: "note" }, "Nothing was logged yet."),
    element("div", { class: "charts" }, charts),
    side.length ? element("details", { class: "more" }, element("summary", {}, "Speed and learning rate"), element("div", { class: "charts" }, side)) : null);
}

function comparisonOfChosen(comparison, colours) {
  const { runs, sections } = comparison;
  const heading = (text) => element("tr", {}, element("th", { class: "group", colspan: runs.length + 1, scope: "rowgroup" }, text));
  const rows = Object.entries(SECTIONS).filter(([key]) => (sections[key] || []).length)
    .flatMap(([key, title]) => [heading(title), ...sections[key].map((row) => comparedRow(IN_WORDS.has(key) ? spaced(row.key) : brokenAtDots(row.key), row))]);
  return section("comparison", "What differs",
    element("div", { class: "controls" }, element("a", { href: reportOf(runs), target: "_blank", rel: "noopener" }, "Report, sample by sample")),
    element("div", { class: "scroller limited" }, element("table", { class: "plain-table differing" },
      element("caption", { class: "hidden" }, "What differs between the runs"),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, ""), runs.map((name) => element("th", { scope: "col", title: name },
        element("i", { class: `swatch run${colours.get(name)}`, "aria-hidden": "true" }), name)))),
      element("tbody", {}, rows))));
}

function comparedRow(title, row) {
  const wins = new Set(row.best || []);
  return element("tr", {}, element("th", { scope: "row" }, title), row.values.map((value, place) => {
    const step = row.steps && row.steps[place] !== null && value !== null ? element("span", { class: "muted" }, ` @${number(row.steps[place])}`) : null;
    return element("td", { class: wins.has(place) ? "winner" : null }, typeof value === "number" ? number(value) : value === null ? MISSING : String(value), step);
  }));
}
