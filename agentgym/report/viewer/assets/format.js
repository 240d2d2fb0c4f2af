// Numbers as people read them; what is unknown is a dash, never a zero.

const GROUPED = new Intl.NumberFormat("en-US");

function int(value) {
  return value === null || value === undefined ? "–" : GROUPED.format(value);
}

function num(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return GROUPED.format(value);
  const text = Math.abs(value) < 0.001 ? value.toPrecision(2) : value.toFixed(digits);
  return text.includes("e") ? text : text.replace(/\.?0+$/, "");
}

function dollars(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "$0";
  return "$" + (value < 0.01 ? value.toPrecision(2) : value.toFixed(value < 1 ? 4 : 2));
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  if (value >= 120) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value >= 10) return `${value.toFixed(0)} s`;
  return value >= 0.1 ? `${value.toFixed(1)} s` : `${(value * 1000).toFixed(value < 0.001 ? 2 : 0)} ms`;
}

function compact(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1000) return String(value);
  if (value < 9950) return (value / 1000).toFixed(1) + "k";
  return value < 999500 ? Math.round(value / 1000) + "k" : (value / 1e6).toFixed(1) + "M";
}

function share(part, whole) {
  return whole ? Math.round((100 * part) / whole) + " %" : "–";
}

function plural(count, one, many = one + "s") {
  return `${int(count)} ${count === 1 ? one : many}`;
}
