// All values of one sample, in a dialog.

const dialog = element("dialog", { class: "details", "aria-labelledby": "details-title", onclick: (event) => { if (event.target === dialog) dialog.close(); } });

// `known` stands in for a sample that is neither in the gallery nor in the table.
function openSample(split, row, known) {
  const sample = sampleOf(split, row) || known || null;
  const place = placeOf(split, row);
  const facts = place >= 0
    ? split.table.columns.map((column) => [column.name, shown(split, column, column.values[place])])
    : knownOf(split, sample);
  const id = facts[0][1];
  dialog.replaceChildren(
    element("div", { class: "head" }, element("h3", { id: "details-title" }, id), button("✕", () => dialog.close(), { class: "plain", "aria-label": "Close" })),
    element("div", { class: "columns" },
      sample ? pictures(sample) : element("div", { class: "pictures none" }, "No picture was kept: pictures are of the worst samples, and of some confusions."),
      element("dl", {}, facts.slice(1).map(([name, text]) => [element("dt", {}, spaced(name)), element("dd", {}, text)]))));
  dialog.showModal();
}

function knownOf(split, sample) {
  const facts = ["label", "prediction", "confidence"].filter((name) => sample[name] !== null && sample[name] !== undefined);
  return [["id", sample.id], ...facts.map((name) => [name, name !== "confidence" && split.kind === "classification" ? className(split, sample[name]) : split.kind === "text" ? sample[name] : number(sample[name])]),
    ...Object.entries(sample.values).map(([name, value]) => [name, number(value, 5)])];
}
