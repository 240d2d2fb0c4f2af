// Messages and turns of one episode.

const SYSTEM_CHARS = 1200; // the same in every episode

const CALL_STATES = {
  error: "the tool answered with an error", malformed: "malformed: unreadable, or no such tool",
  cut_off: "cut off by the output limit", not_run: "not run: the episode ended first",
};

/** One message: who says it, and what; after the text `parts`, by default the calls it asks for. */
function messageBox(message, { who = null, parts = null, highlight = null, first = undefined } = {}) {
  parts ??= askedIn(message).map(callBox);
  const text = contentText(message.content);
  const role = String(message.role ?? "?");
  const known = ["system", "user", "assistant", "tool"].includes(role) ? role : "other";
  return el(`section.message.${known}`, {},
    el("h4", {}, visible(visibleText(who || role, 80))),
    text ? longText(text, { highlight, first: first ?? (role === "system" ? SYSTEM_CHARS : undefined) }) : null,
    text || parts.length ? null : el("p.quiet", {}, "(no text)"),
    parts);
}

/** One call with its arguments and state; its result is the message after it. */
function callBox(call) {
  const state = CALL_STATES[call.status];
  const readable = call.arguments !== null && call.arguments !== undefined;
  return el("div.call", {},
    el("div.line", {},
      el("code.name", {}, visible(visibleText(call.name, 120))),
      state ? el("span.badge.bad", {}, state) : null,
      call.repaired ? el("span.badge.warn", { title: "not in the model's own format, and readable all the same" }, "repaired") : null,
      call.original_id ? el("span.badge", { title: "the model's own id was missing or repeated" }, "id rewritten") : null,
      call.duration_s ? el("span.quiet", {}, seconds(call.duration_s)) : null),
    longText(valueText(readable ? call.arguments : call.raw_arguments), { first: 1500 }));
}

/** The calls that a message asks for, where none was recorded. */
function askedIn(message) {
  return (Array.isArray(message.tool_calls) ? message.tool_calls : []).map((asked) => {
    const target = asked && asked.function ? asked.function : asked;
    return { name: String(target?.name ?? "?"), arguments: null, raw_arguments: target?.arguments ?? asked, status: "" };
  });
}

function turnBox(turn, ids) {
  const asked = askedIn(turn.message);
  const fromText = turn.calls.length && !asked.length;
  const calls = (turn.calls.length ? turn.calls : asked).map(callBox);
  const names = new Map(turn.calls.map((call) => [call.id, call.name]));
  const parts = [
    turn.malformed_text ? el("span.badge.bad", {}, "matches no action of the env") : null,
    turn.cut_off ? el("span.badge.bad", {}, "ended by the output limit") : null,
    calls.length && !fromText ? el("div.calls", {}, calls) : null,
    fromText ? lazyDetails(`read as ${plural(calls.length, "call")}`, () => el("div.calls", {}, calls)) : null,
  ];
  return el("article.turn", { id: `turn-${turn.index}`, tabindex: "-1" },
    turnLine(turn, ids),
    turn.reasoning ? lazyDetails(`reasoning: ${plural(turn.reasoning.length, "character")}, never replayed`,
                                 () => longText(turn.reasoning)) : null,
    messageBox(turn.message, { parts }),
    turn.replies.map((reply) => messageBox(reply, {
      who: reply.role === "tool" && names.get(reply.tool_call_id) ? `tool: ${names.get(reply.tool_call_id)}` : null,
    })));
}

/** Tokens with the cached share, seconds, and what else is known of the call to the policy. */
function turnLine(turn, ids) {
  const facts = [];
  const { usage } = turn;
  if (usage) {
    const cached = usage.prompt_tokens ? usage.cached_tokens / usage.prompt_tokens : 0;
    facts.push(el("span", { title: `${int(usage.cached_tokens)} of ${int(usage.prompt_tokens)} input tokens came from the cache` },
      meter(cached), `${int(usage.prompt_tokens)} in (${share(usage.cached_tokens, usage.prompt_tokens)} cached)`));
    facts.push(`${int(usage.completion_tokens)} out` +
      (usage.reasoning_tokens ? ` (${int(usage.reasoning_tokens)} reasoning)` : "") + (usage.estimated ? ", estimated" : ""));
  }
  if (turn.policy_s !== null) facts.push(`policy ${seconds(turn.policy_s)}`);
  facts.push(`env ${seconds(turn.env_s)}`);
  if (turn.at_s !== null) facts.push(`at ${seconds(turn.at_s)}`);
  if (turn.finish_reason) facts.push(`finish: ${visibleText(turn.finish_reason, 40)}`);
  if (turn.attempts > 1) facts.push(`${turn.attempts} requests`);
  if (turn.replica) facts.push(visibleText(turn.replica, 60));
  if (turn.weight_version) facts.push(`weights ${visibleText(turn.weight_version, 40)}`);
  if (ids) facts.push(el("span", { title: `${int(ids.prompt)} ids in, ${int(ids.sampled)} sampled` },
    "token ids kept" + (ids.mean_logprob === null ? "" : `, mean logprob ${num(ids.mean_logprob)}`)));
  return el("header.turn-line", {}, el("h3", {}, `Turn ${turn.index + 1}`),
    facts.map((fact) => el("span.fact", {}, fact)));
}

function meter(part) {
  return el("span.meter", { "aria-hidden": "true" }, el("span", { style: { width: `${Math.round(100 * part)}%` } }));
}

/** How many of the messages came before the first turn. */
function openingOf(trace) {
  const played = trace.turns.reduce((sum, turn) => sum + 1 + turn.replies.length, 0);
  const count = trace.messages.length - played;
  const first = trace.turns[0]?.message;
  if (!first || (count >= 0 && sameValue(trace.messages[count], first))) return trace.messages.slice(0, Math.max(0, count));
  const assistant = trace.messages.findIndex((message) => message.role === "assistant");
  return trace.messages.slice(0, assistant < 0 ? trace.messages.length : assistant);
}

function sameValue(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}
