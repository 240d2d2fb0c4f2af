// The filter's language: words, field:part, field=whole, field>number, is:fact, and - before any.

const TEXT_FIELDS = {
  env: (row) => row.env, task: (row) => row.task, id: (row) => row.id, group: (row) => row.group,
  split: (row) => row.split, model: (row) => row.model, file: (row) => row.fileName,
  class: (row) => row.failureClass, stage: (row) => row.failedStage, ended: (row) => row.ended,
  seed: (row) => row.seed,
};
const NUMBER_FIELDS = {
  reward: (row) => row.reward, turns: (row) => row.turns, calls: (row) => row.calls,
  malformed: (row) => row.malformed, cost: (row) => row.cost, step: (row) => row.step,
  tokens: (row) => (row.tokensIn === null ? null : row.tokensIn + row.tokensOut),
  seconds: (row) => row.seconds, sample: (row) => row.sample, external: (row) => row.external,
};
const FACTS = {
  solved: (row) => row.correct === true,
  unsolved: (row) => !row.masked && row.correct === false,
  completed: (row) => row.completed,
  masked: (row) => row.masked,
  scored: (row) => !row.masked,
  truncated: (row) => row.truncated,
  malformed: (row) => row.malformed > 0,
  cutoff: (row) => row.cutOff,
  repeated: (row) => row.earlier > 0,
  superseded: (row) => row.superseded,
  "external-solved": (row) => row.externallySolved === true,
  "external-unsolved": (row) => row.externallySolved === false,
  "external-unscored": (row) => row.externalName !== null && row.externallySolved === null,
  disagreed: disagreed,
};
const EXTERNAL_FACTS = ["external-solved", "external-unsolved", "external-unscored", "disagreed"];

/** Whether the reward's verdict and the external score say different things about success. */
function disagreed(row) {
  return row.externallySolved !== null && row.correct !== null && row.externallySolved !== row.correct;
}
const QUOTED = String.raw`"(?:[^"\\]|\\.)*"`; // \" and \\ stand for themselves
const TERM = new RegExp(`(-?)(?:([^\\s"<>=:]+|${QUOTED})(>=|<=|[:=<>]))?(${QUOTED}|\\S*)`, "suy");

/** The terms of a query; what can't be read has `error`. `components` are the names there are. */
function parseQuery(text, components) {
  const terms = [];
  let at = 0;
  while (at < text.length) {
    if (/\s/.test(text[at])) { at += 1; continue; }
    TERM.lastIndex = at;
    const [source, minus, name, operator, value] = TERM.exec(text);
    const term = { source, not: minus === "-", field: name && unquoted(name), operator, value: unquoted(value) };
    terms.push(Object.assign(term, meaningOf(term, components)));
    at += source.length || 1;
  }
  return terms;
}

function unquoted(text) {
  if (!text.startsWith('"')) return text;
  return text.replace(/^"|"$/g, "").replace(/\\(["\\])/g, "$1");
}

function quoted(text) {
  return /[\s"]/.test(text) ? `"${text.replace(/["\\]/g, "\\$&")}"` : text;
}

function meaningOf({ field, operator, value }, components) {
  if (!field) return { test: haystackTest(value) };
  const name = field.toLowerCase();
  if (name === "is" && operator === ":") {
    return own(FACTS, value) ? { test: FACTS[value] } : { error: `is: takes ${Object.keys(FACTS).join(", ")}` };
  }
  if (name === "gate" && (operator === ":" || operator === "=")) {
    return { test: (row) => row.gates.some((gate) => textTest(operator, value)(gate)) };
  }
  const text = own(TEXT_FIELDS, name);
  if (text && (operator === ":" || operator === "=")) {
    const test = textTest(operator, value);
    return { test: (row) => test(text(row)) };
  }
  if (text || name === "gate" || name === "is") return { error: `${name} takes : or =` };
  const number = own(NUMBER_FIELDS, name) ||
    (components.has(field) ? (row) => own(row.components, field) ?? null : null);
  if (!number) {
    if (operator === ":") return { test: haystackTest(field + operator + value) };
    return { error: `nothing is called ${field}` };
  }
  const wanted = Number(value);
  if (value === "" || Number.isNaN(wanted)) return { error: `${field} takes a number` };
  return { test: (row) => { const x = number(row); return x !== null && holds(x, operator, wanted); } };
}

function textTest(operator, value) {
  const wanted = value.toLowerCase();
  return (found) => {
    if (found === null || found === undefined) return wanted === "none";
    const text = String(found).toLowerCase();
    return operator === "=" ? text === wanted : text.includes(wanted);
  };
}

function holds(x, operator, wanted) {
  switch (operator) {
    case ">": return x > wanted;
    case "<": return x < wanted;
    case ">=": return x >= wanted;
    case "<=": return x <= wanted;
    default: return x === wanted;
  }
}

function haystackTest(word) {
  const wanted = word.toLowerCase();
  return (row) => haystack(row).includes(wanted);
}

function haystack(row) {
  row.haystack ??= [row.id, row.env, row.task, row.model, row.fileName, row.group, row.ended,
                    row.failureClass, ...row.gates, row.opening].filter(Boolean).join("\n").toLowerCase();
  return row.haystack;
}

/** The rows that match every term. */
function filterRows(rows, terms) {
  const tests = terms.filter((term) => term.test);
  return rows.filter((row) => tests.every(({ test, not }) => test(row) !== not));
}

/** The query with one field's term set, or taken out. */
function withTerm(text, field, operator, value) {
  const kept = parseQuery(text, new Set())
    .filter((term) => !(term.field === field && !term.not))
    .map((term) => term.source);
  if (value) kept.push(`${field}${operator}${quoted(value)}`);
  return kept.join(" ");
}

const SORTS = {
  outcome: (row) => (row.masked || row.correct === null ? null : row.correct ? 2 : row.completed ? 1 : 0),
  ...NUMBER_FIELDS, env: TEXT_FIELDS.env, task: TEXT_FIELDS.task, model: TEXT_FIELDS.model,
  file: TEXT_FIELDS.file, ended: TEXT_FIELDS.ended, gates: (row) => row.gates.length || null,
  started: (row) => row.started,
};
const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Rows in the order of a column ("-reward" is descending); unknown values come last either way. */
function sortRows(rows, sort) {
  const down = sort.startsWith("-");
  const key = own(SORTS, down ? sort.slice(1) : sort);
  if (!key) return rows;
  const compare = (a, b) => (typeof a === "string" ? COLLATOR.compare(a, b) : a - b);
  return rows
    .map((row) => [key(row), row])
    .sort(([a, one], [b, other]) => {
      if (a === null || b === null) return (a === null) - (b === null) || one.number - other.number;
      return (down ? compare(b, a) : compare(a, b)) || one.number - other.number;
    })
    .map(([, row]) => row);
}
