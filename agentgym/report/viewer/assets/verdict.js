// What stands beside the conversation: the verdict, money, time, and where it all came from.

function panel(title, ...content) {
  return el("section.panel", {}, el("h2", {}, title), content);
}

function facts(pairs) {
  return el("table.facts", {}, pairs
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name),
      el("td", {}, value instanceof Node || Array.isArray(value) ? value : visible(visibleText(String(value), 2000))))));
}

function table(heads, lines, { right = [] } = {}) {
  const cell = (kind, value, k) => el(right.includes(k) ? kind + ".right" : kind, {},
    typeof value === "string" ? visible(visibleText(value, 500)) : value);
  return el("table.plain", {},
    el("thead", {}, el("tr", {}, heads.map((head, k) => cell("th", head, k)))),
    el("tbody", {}, lines.map((line) => el("tr", {}, line.map((value, k) => cell("td", value, k))))));
}

/** What an evaluation counts as success; null where there is no evaluation. */
function externalPanel(row) {
  if (row.externalName === null) return null;
  const success = row.externallySolved === null ? "no score: something other than the policy broke" : yesNo(row.externallySolved);
  return panel("External score",
    facts([["score", row.external === null ? "none" : num(row.external, 4)], ["success", success], ["by", row.externalName]]),
    el("p.quiet", {}, "This is what the evaluation counts. The verdict below is the reward's, which policies are trained on."),
    disagreed(row) ? el("p", {}, el("b.bad", {}, "≠ "), "The two disagree.") : null);
}

function verdictPanel(row, trace) {
  const { verdict } = trace;
  const components = Object.entries(verdict.components);
  const gates = Object.entries(verdict.gates);
  return panel(row.externalName === null ? "Verdict" : "Reward's verdict",
    el("p.big", {}, outcomeMark(row), el("b", {}, trace.verdict.reward === null ? "no reward" : num(verdict.reward, 4))),
    facts([
      ["completed", yesNo(verdict.completed)], ["correct", verdict.correct === null ? "nobody can tell" : yesNo(verdict.correct)],
      ["masked", verdict.masked ? "yes: no training signal" : null],
      ["blame", trace.failure_class || verdict.failure_class], ["failed in", trace.failed_stage],
      ["judge", verdict.judge_failed ? "failed" : null], ["ended", row.ended], ["answer", trace.answer === null ? null : visibleText(trace.answer, 400)],
    ]),
    components.length ? table(["component", "value"], components.map(([name, value]) => [name, num(value, 4)]), { right: [1] }) : null,
    gates.length ? table(["gate", "", "times"], gates.map(([name, tripped]) =>
      [name, el(tripped ? "b.bad" : "span.quiet", {}, tripped ? "tripped" : "not tripped"), int(own(verdict.gate_counts, name))]), { right: [2] }) : null,
    verdict.reason ? [el("h3", {}, verdict.masked ? "Why it is masked" : "Judge's notes"), longText(verdict.reason, { first: 1500 })] : null,
    previousVerdicts(trace.metadata.previous_verdicts));
}

function previousVerdicts(before) {
  if (!Array.isArray(before) || !before.length) return null;
  return lazyDetails(`judged before: ${plural(before.length, "verdict")}`, () => longText(valueText(before)));
}

function yesNo(value) {
  return value ? "yes" : "no";
}

function errorPanel(trace) {
  if (!trace.error) return null;
  return panel("Error", longText(trace.error, { first: 2000 }));
}

function earlierPanel(trace) {
  if (!trace.earlier.length) return null;
  return panel("Earlier attempts", trace.earlier.map((attempt, k) => lazyDetails(
    `${k + 1}. ${attempt.failure_class}, in ${attempt.failed_stage}` + (attempt.lost_worker ? ", its process was lost" : ""),
    () => [longText(attempt.error, { first: 1500 }), usageTable(attempt.usage)])));
}

function usageTable(usage) {
  const roles = Object.entries(usage || {});
  if (!roles.length) return null;
  return table(["role", "in", "cached", "out", "calls", "cost"], roles.map(([role, used]) => [
    role, int(used.prompt_tokens), share(used.cached_tokens, used.prompt_tokens), int(used.completion_tokens),
    int(used.calls) + (used.failed_calls ? ` (${used.failed_calls} failed)` : ""), dollars(used.cost_usd),
  ]), { right: [1, 2, 3, 4, 5] });
}

function usagePanel(row, trace) {
  return panel("Tokens and time",
    usageTable(trace.usage),
    facts([
      ["cost", costText(row, trace)],
      ...Object.entries(trace.stage_s).map(([stage, took]) => [`stage ${stage}`, seconds(took)]),
      ["started", trace.started_at],
    ]),
    trace.turns.length ? lazyDetails("turn by turn", () => turnTable(trace)) : null);
}

function costText(row, trace) {
  if (row.cost !== null) return dollars(row.cost);
  return Object.keys(trace.usage).length ? "unknown: a role has no price" : "unknown: no usage was recorded";
}

function turnTable(trace) {
  return table(["turn", "in", "cached", "out", "policy", "env"], trace.turns.map((turn) => [
    String(turn.index + 1), int(turn.usage?.prompt_tokens), turn.usage ? share(turn.usage.cached_tokens, turn.usage.prompt_tokens) : "–",
    int(turn.usage?.completion_tokens), seconds(turn.policy_s), seconds(turn.env_s),
  ]), { right: [0, 1, 2, 3, 4, 5] });
}

function originPanel(row, trace) {
  const folded = (name, value) => (value && Object.keys(value).length
    ? lazyDetails(name, () => longText(valueText(value), { first: 6000 })) : null);
  return panel("Where it comes from",
    facts([
      ["env", row.env], ["task", trace.task_id], ["split", trace.split], ["group", trace.group], ["sample", trace.sample],
      ["seed", row.seed], ["model", row.model], ["file", row.fileName], ["trace id", trace.trace_id],
    ]),
    folded(`tools (${trace.tools.length})`, trace.tools), folded("sampling", trace.policy), folded("outcome", trace.outcome),
    folded("metadata", trace.metadata), lazyDetails("environment", () => longText(trace.env_spec)));
}
