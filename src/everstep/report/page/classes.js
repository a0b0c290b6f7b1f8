// A table that sorts itself, and with it the numbers of each class.
//   columns: [{ name, value(row), text(row), bar }]

function sortable(caption, columns, rows, onpick) {
  const order = { column: null, descending: false };
  const box = redrawn((again) => {
    const sorted = order.column === null ? rows : [...rows].sort((a, b) => compared(columns[order.column].value(a), columns[order.column].value(b), order.descending));
    const head = columns.map((column, place) => element("th", { scope: "col", "aria-sort": ariaSort(order, place) },
      button([column.name, sortMark(order, place)], () => { turn(order, place, !column.isText); again(); box.querySelectorAll("thead button")[place].focus(); }, { class: "sort" })));
    return element("div", { class: "scroller limited", tabindex: "0", role: "region", "aria-label": caption }, element("table", { class: "plain-table" }, element("caption", { class: "hidden" }, caption),
      element("thead", {}, element("tr", {}, head)),
      element("tbody", {}, sorted.map((row) => element("tr", {}, columns.map((column, place) => sortableCell(column, place, row, onpick)))))));
  });
  return box;
}

function sortableCell(column, place, row, onpick) {
  if (place === 0) return element("th", { scope: "row" }, onpick && onpick(row) ? button(column.text(row), onpick(row), { class: "plain" }) : column.text(row));
  const cell = element("td", {}, column.text(row));
  return column.bar ? styled(filled(cell, { class: "bars" }, []), { "--bar": `${(100 * (column.bar(row) || 0)).toFixed(1)}%` }) : cell;
}

function turn(order, column, descendingFirst) {
  if (order.column === column) order.descending = !order.descending;
  else { order.column = column; order.descending = descendingFirst; }
}

function ariaSort(order, place) {
  return order.column === place ? (order.descending ? "descending" : "ascending") : "none";
}

function sortMark(order, place) {
  return element("span", { class: "sort-mark", "aria-hidden": "true" }, order.column === place ? (order.descending ? "▼" : "▲") : "");
}

// Missing values come last in either direction.
function compared(a, b, descending) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1;
  if (b === null || b === undefined) return -1;
  const order = typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  return descending ? -order : order;
}

function metricColumns(split, rows) {
  return split.metrics.map((metric, place) => {
    const known = rows.map((row) => row.means[place]).filter((value) => value !== null && value >= 0);
    const most = Math.max(0, ...known);
    return { name: spaced(metric.name), value: (row) => row.means[place], text: (row) => number(row.means[place]), bar: (row) => (most ? Math.max(0, row.means[place]) / most : 0) };
  });
}

function classesSection(split) {
  if (!split.by_class.length) return null;
  const share = (name) => ({ name: name === "f1" ? "F1" : name, value: (row) => row[name], text: (row) => number(row[name], 3), bar: (row) => row[name] });
  const columns = [
    { name: "class", isText: true, value: (row) => className(split, row.class), text: (row) => className(split, row.class) },
    { name: "support", value: (row) => row.support, text: (row) => number(row.support) },
    share("precision"), share("recall"), share("f1"), ...metricColumns(split, split.by_class),
  ];
  return section("classes", "Classes", sortable("Numbers of each class", columns, split.by_class,
    (row) => () => setFilters([{ column: "label", is: row.class, type: "class" }], "samples")));
}
