// The configuration of a run, or the differences between several.

function configurationSection() {
  const texts = data.runs.filter((run) => run.config);
  if (!texts.length) return null;
  return section("configuration", "Configuration", data.runs.length > 1 ? [leftOut(), settingsCompared()] : null,
    texts.map((run) => element("details", { class: "card more" }, element("summary", {}, data.runs.length > 1 ? `All of ${run.name}` : "Show all of it"),
      element("pre", { tabindex: "0" }, run.config))));
}

// A text that is not YAML has no keys to compare.
function leftOut() {
  const names = data.incomparable.map((place) => data.runs[place].name);
  return names.length ? element("p", { class: "note" }, `Not compared, because it cannot be read as settings in YAML: ${names.join(", ")}.`) : null;
}

function settingsCompared() {
  if (!data.configuration.length && data.runs.length - data.incomparable.length < 2) return null;
  if (!data.configuration.length) return element("p", { class: "note" }, data.incomparable.length ? "The other configurations are the same." : "The configurations are the same.");
  return element("div", { class: "scroller" }, element("table", { class: "plain-table settings" }, element("caption", { class: "hidden" }, "Settings that differ"),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "setting"), data.runs.map((run, place) => element("th", { scope: "col" }, runName(place))))),
    element("tbody", {}, data.configuration.map((row) => element("tr", {}, element("th", { scope: "row" }, brokenAtDots(row.key)), row.values.map((value) => element("td", {}, value === null ? MISSING : value)))))));
}
