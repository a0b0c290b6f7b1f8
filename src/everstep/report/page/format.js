// Numbers and names formatted for readers.

const MISSING = "–";
const grouped = new Intl.NumberFormat("en");

function number(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return MISSING;
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return grouped.format(value);
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e");
  return grouped10(rounded(value, digits));
}

// 0.99996 is not 1: digits are added until it shows.
function rounded(value, digits) {
  const short = Number(value.toPrecision(digits));
  return Number.isInteger(short) && Math.abs(value) < 1000 && digits < 8 ? rounded(value, digits + 1) : short;
}

function grouped10(value) {
  return Math.abs(value) >= 1000 ? grouped.format(value) : String(value);
}

function signed(value) {
  if (value === null || value === undefined) return MISSING;
  const text = number(Math.abs(value), 3);
  return value > 0 ? `+${text}` : value < 0 ? `−${text}` : "±0";
}

function percent(share) {
  return share === null ? MISSING : `${Number((100 * share).toPrecision(3))} %`;
}

function count(size, noun) {
  return `${number(size)} ${noun}${size === 1 ? "" : "s"}`;
}

function spaced(name) {
  return name.replaceAll("_", " ");
}

function className(split, value) {
  if (value === null || value === undefined) return MISSING;
  return split.classes && split.classes[value] !== undefined ? split.classes[value] : String(value);
}

// A value of a column as text.
function shown(split, column, value) {
  if (value === null || value === undefined) return MISSING;
  if (column.type === "class") return className(split, value);
  return typeof value === "number" ? number(value, 5) : value;
}

// Whether a change is good, bad, or neither.
function verdict(change, better) {
  if (!change || !better) return "";
  return change > 0 === (better === "higher") ? "good" : "bad";
}

function interval(low, high) {
  return `${number(low, 3)} to ${number(high, 3)}`;
}

function arrow(better) {
  return better === "higher" ? "higher is better" : better === "lower" ? "lower is better" : "";
}
