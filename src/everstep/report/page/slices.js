// Means of the metrics for each value of a column; a click on a value filters its samples.

function slicesSection(split) {
  if (!split.slices.length) return null;
  const names = split.slices.map((one) => [one.column, spaced(one.column)]);
  const box = element("div");
  const show = (name) => box.replaceChildren(sliceTable(split, split.slices.find((one) => one.column === name)));
  show(names[0][0]);
  return section("slices", "Slices", element("div", { class: "controls" }, choice("By", names, names[0][0], show),
    element("span", { class: "muted" }, "Means over all samples; a group filters the table.")), box);
}

function sliceTable(split, slice) {
  const column = columnsOf(split).get(slice.column) || { type: "text" };
  const most = Math.max(...slice.groups.map((group) => group.count));
  const name = (group) => ("value" in group ? shown(split, column, group.value) : "low" in group ? interval(group.low, group.high) : "others");
  const columns = [
    { name: spaced(slice.column), isText: column.type !== "number", value: (group) => ("low" in group ? group.low : "value" in group ? (column.type === "class" ? name(group) : group.value) : null), text: name },
    { name: "samples", value: (group) => group.count, text: (group) => number(group.count), bar: (group) => group.count / most },
    ...metricColumns(split, slice.groups),
  ];
  return sortable(`Metrics by ${spaced(slice.column)}`, columns, slice.groups, (group) => sliceFilter(slice.column, group));
}

function sliceFilter(column, group) {
  if ("value" in group) return () => setFilters([{ column, is: group.value }], "table");
  if ("low" in group) return () => setFilters([{ column, low: group.low, high: group.high, last: Boolean(group.last) }], "table");
  return null;
}
