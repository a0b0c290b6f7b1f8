// The worst samples by a metric, or those that pass the filter.

const PER_PAGE = 24;

function gallerySection(split) {
  if (!split.samples.length) return null;
  const state = { metric: split.metrics.length ? split.metrics[0].name : null, pages: 1 };
  const grid = element("div", { class: "gallery", role: "list" }), note = element("p", { class: "muted", "aria-live": "polite" }), more = element("div", { class: "controls" });
  const show = () => {
    const found = galleryOf(split, state.metric);
    const some = found.slice(0, state.pages * PER_PAGE);
    note.textContent = galleryNote(split, state.metric, found.length);
    grid.replaceChildren(...some.map((sample) => element("div", { role: "listitem" }, sampleCard(split, sample, state.metric))));
    more.replaceChildren(...(found.length > some.length ? [button(`Show ${Math.min(PER_PAGE, found.length - some.length)} more`, () => { state.pages += 1; show(); })] : []));
  };
  listen("filters", () => { state.pages = 1; show(); });
  show();
  const metrics = split.metrics.map((metric) => [metric.name, spaced(metric.name)]);
  return section("samples", "Worst samples",
    element("div", { class: "controls" }, metrics.length > 1 ? choice("Worst by", metrics, state.metric, (name) => { state.metric = name; state.pages = 1; show(); }) : null, note), grid, more);
}

function galleryOf(split, metric) {
  const test = isFiltered() ? sampleTest(split) : (sample) => !metric || sample.reasons.some((reason) => reason.metric === metric);
  const better = (split.metrics.find((one) => one.name === metric) || {}).better;
  return split.samples.filter(test).sort((a, b) => compared(a.values[metric] ?? null, b.values[metric] ?? null, better !== "higher"));
}

function galleryNote(split, metric, found) {
  const name = metric ? spaced(metric) : "";
  if (!isFiltered()) return `The ${found} worst of ${count(split.rows, "sample")}${name ? ` by ${name}` : ""}.`;
  if (!found) return "Of the samples that pass the filter no picture was kept; the table below has their numbers.";
  return `${count(found, "sample")} with pictures pass the filter; the table below has all that pass.`;
}

function sampleCard(split, sample, metric) {
  const value = metric ? `${spaced(metric)} ${number(sample.values[metric] ?? null)}` : "";
  const sure = sample.confidence === null || sample.confidence === undefined ? "" : `${percent(sample.confidence)} sure`;
  return button([pictures(sample), element("span", { class: "id" }, sample.id), outcome(split, sample.label, sample.prediction),
    element("span", { class: "muted" }, [sure, value].filter(Boolean).join(" · "))],
  () => openSample(split, sample.row), { class: "sample", "aria-label": cardLabel(split, sample) });
}

function cardLabel(split, sample) {
  if (split.kind !== "classification" || sample.prediction === null) return `Sample ${sample.id}`;
  return `Sample ${sample.id}: ${className(split, sample.label)} taken for ${className(split, sample.prediction)}`;
}
