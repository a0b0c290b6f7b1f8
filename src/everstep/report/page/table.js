// A virtual table of all samples: only the visible rows are rendered.

const ROW_HEIGHT = 34;
const SPARE_ROWS = 12;

function tableSection(split) {
  if (!split.table) return null;
  const table = new SampleTable(split);
  const size = tableSize(split);
  const said = size < split.table.total ? `The worst by each metric, and an even sample: ${number(size)} of ${count(split.table.total, "row")}.` : null;
  return section("table", "All samples", said ? element("p", { class: "note" }, said) : null, tableControls(split), table.note, table.scroller);
}

class SampleTable {
  constructor(split) {
    this.split = split;
    this.columns = split.table.columns;
    this.sorting = { column: null, descending: false };
    this.active = 0;
    this.first = -1;
    this.note = element("p", { class: "muted", role: "status" });
    this.body = element("tbody", { onkeydown: (event) => this.key(event), onclick: (event) => this.click(event) });
    this.head = element("thead");
    this.table = element("table", { class: "virtual" }, element("caption", { class: "hidden" }, "Samples"), element("colgroup", {}, this.columns.map((c) => element("col", { class: c.name === "id" ? "wide" : c.type }))), this.head, this.body);
    this.scroller = element("div", { class: "scroller tall", role: "region", "aria-label": "Table of samples", onscroll: () => this.paint() }, this.table);
    this.scroller.classList.add("virtual-scroller");
    new ResizeObserver(() => this.paint(true)).observe(this.scroller);
    listen("filters", () => this.arrange());
    this.arrange();
  }

  // Filters, sorts, and begins at the top.
  arrange() {
    const test = tableTest(this.split), found = [];
    for (let place = 0; place < tableSize(this.split); place += 1) if (test(place)) found.push(place);
    const column = this.columns[this.sorting.column];
    if (column) {
      const values = column.type === "class" && this.split.classes ? column.values.map((v) => (v === null ? null : className(this.split, v))) : column.values;
      found.sort((a, b) => compared(values[a], values[b], this.sorting.descending));
    }
    this.order = found;
    this.active = 0;
    this.note.textContent = `${number(found.length)} of ${count(tableSize(this.split), "row")}`;
    this.table.setAttribute("aria-rowcount", found.length + 1);
    this.scroller.scrollTop = 0;
    this.paintHead();
    this.paint(true);
  }

  paintHead() {
    this.head.replaceChildren(element("tr", {}, this.columns.map((column, place) => element("th", { scope: "col", class: column.type, "aria-sort": ariaSort(this.sorting, place) },
      button([spaced(column.name), sortMark(this.sorting, place)], () => { turn(this.sorting, place, column.type === "number"); this.arrange(); this.refocus(place); }, { class: "sort", title: column.name })))));
  }

  refocus(place) {
    this.head.querySelectorAll("button")[place].focus();
  }

  paint(anyway) {
    const room = Math.ceil((this.scroller.clientHeight || 500) / ROW_HEIGHT);
    const first = Math.max(0, Math.min(this.order.length, Math.floor(this.scroller.scrollTop / ROW_HEIGHT)) - SPARE_ROWS);
    if (!anyway && Math.abs(first - this.first) < SPARE_ROWS / 2) return;
    this.first = first;
    const last = Math.min(this.order.length, first + room + 2 * SPARE_ROWS);
    const focused = this.body.contains(document.activeElement);
    const rows = [];
    for (let i = first; i < last; i += 1) rows.push(this.row(i));
    this.body.replaceChildren(this.space(first), ...rows, this.space(this.order.length - last));
    if (focused) this.focusActive();
  }

  space(rows) {
    return styled(element("tr", { class: "space", "aria-hidden": "true" }), { height: `${rows * ROW_HEIGHT}px` });
  }

  row(i) {
    const place = this.order[i];
    const picture = sampleOf(this.split, rowAt(this.split, place));
    return element("tr", { tabindex: i === this.active ? "0" : "-1", "data-order": i, "aria-rowindex": i + 2 },
      this.columns.map((column, c) => element(c ? "td" : "th", { class: column.type, scope: c ? null : "row" },
        c === 0 && picture ? element("span", { class: "kept", title: "has a picture" }, "▣ ") : null, shown(this.split, column, column.values[place]))));
  }

  open(i) {
    openSample(this.split, rowAt(this.split, this.order[i]));
  }

  click(event) {
    const row = event.target.closest("tr[data-order]");
    if (!row) return;
    this.activate(Number(row.dataset.order));
    this.open(this.active);
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -this.order.length, End: this.order.length }[event.key];
    if (step) { event.preventDefault(); this.activate(Math.max(0, Math.min(this.order.length - 1, this.active + step))); }
    else if (event.key === "Enter") { event.preventDefault(); this.open(this.active); }
  }

  activate(i) {
    this.active = i;
    const top = i * ROW_HEIGHT, head = this.head.offsetHeight, { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + ROW_HEIGHT + head > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW_HEIGHT + head - clientHeight;
    this.paint(true);
    this.focusActive();
  }

  focusActive() {
    const row = this.body.querySelector(`tr[data-order="${this.active}"]`);
    if (row) row.focus({ preventScroll: true });
  }
}

// A search over all texts, and one condition at a time on a column.
function tableControls(split) {
  const find = () => { if (view.search !== search.value) { view.search = search.value; announce("filters"); } };
  const search = element("input", { type: "search", placeholder: "id, class, text …", oninput: find, onchange: find });
  listen("filters", () => { if (search.value !== view.search) search.value = view.search; });
  const columns = split.table.columns.map((column) => [column.name, spaced(column.name)]);
  const typed = element("input", { type: "text", "aria-label": "Value", placeholder: "value", size: 8 });
  const name = choice("Where", columns, columns[0][0], () => {});
  const kind = choice("", [["contains", "is / has"], ["not", "is not"], ["least", "≥"], ["most", "≤"]], "contains", () => {});
  kind.querySelector("select").setAttribute("aria-label", "Condition");
  const form = element("form", { class: "controls", onsubmit: (event) => {
    event.preventDefault();
    if (typed.value.trim()) addFilter({ column: name.querySelector("select").value, [kind.querySelector("select").value]: typed.value.trim() });
  } }, element("label", { class: "field" }, element("span", {}, "Search"), search), name, kind, typed, element("button", { type: "submit" }, "Filter"));
  return form;
}
