// The distribution of each metric; a click on a bar filters its samples.

function distributionsSection(split) {
  if (!split.metrics.length) return null;
  const grid = element("div", { class: "charts" });
  const draw = (logarithmic) => grid.replaceChildren(...split.metrics.map((metric) => distribution(split, metric, logarithmic)));
  draw(false);
  return section("distributions", "Distributions",
    element("div", { class: "controls" }, tickbox("logarithmic counts", false, draw), element("span", { class: "muted" }, "A bar filters the table. The line is the mean.")), grid);
}

function distribution(split, metric, logarithmic) {
  const missing = split.rows - metric.count;
  const note = [`mean ${number(metric.mean)}`, metric.description, arrow(metric.better), missing ? `${number(missing)} without a number` : ""].filter(Boolean).join(" · ");
  const { edges, counts } = metric.histogram;
  const pick = split.table ? (low, high, last) => setFilters([{ column: metric.name, low, high, last }], "table") : null;
  return histogram({ title: metric.name, note, edges, counts, mean: metric.mean, logarithmic }, pick);
}
