// What the runs were given; of several, where they differ.

function configurationSection() {
  const texts = data.runs.filter((run) => run.config);
  if (!texts.length) return null;
  return section("configuration", "Configuration", data.runs.length > 1 ? settingsCompared() : null,
    texts.map((run) => element("details", { class: "card more" }, element("summary", {}, data.runs.length > 1 ? `All of ${run.name}` : "Show all of it"),
      element("pre", { tabindex: "0" }, run.config))));
}

function settingsCompared() {
  if (!data.configuration.length) return element("p", { class: "note" }, "The configurations are the same.");
  return element("div", { class: "scroller" }, element("table", { class: "plain-table settings" }, element("caption", { class: "hidden" }, "Settings that differ"),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "setting"), data.runs.map((run, place) => element("th", { scope: "col" }, runName(place))))),
    element("tbody", {}, data.configuration.map((row) => element("tr", {}, element("th", { scope: "row" }, row.key), row.values.map((value) => element("td", {}, value === null ? MISSING : value)))))));
}
