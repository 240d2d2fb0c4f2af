// Two episodes side by side: what is the same is folded, what comes after the first difference is
// shown turn against turn.

class CompareView {
  constructor(app) {
    this.app = app;
    this.node = el("main.compare", { tabindex: "-1" });
  }

  async show(params) {
    const { store } = this.app;
    const rows = ["a", "b"].map((side) => store.find({
      id: params.get(side), file: params.get(side + "file"), judged: params.get(side + "judged"),
    }));
    this.rows = rows;
    if (!rows[0] || !rows[1]) {
      replace(this.node, el("p.empty", {}, "One of the two episodes isn't here" + (store.reading ? " so far." : ".")));
      return;
    }
    replace(this.node, el("p.empty", {}, "Reading …"));
    const [a, b] = await Promise.all(rows.map((row) => store.body(row)));
    if (this.rows !== rows) return;
    replace(this.node, this._bar(rows), this._summary(rows, [a.trace, b.trace]), this._conversation(a.trace, b.trace));
    this.node.scrollTop = 0;
    this.node.focus({ preventScroll: true });
  }

  _bar([a, b]) {
    return el("div.bar", {},
      el("button", { type: "button", title: "back to the list (Esc)", click: () => this.app.openList() }, "← list"),
      el("h1", {}, "Side by side"),
      el("button", { type: "button", click: () => this.app.compare(b, a) }, "swap"));
  }

  /** What is known of both: the outcome, what differs, and the rest folded. */
  _summary(rows, traces) {
    const names = [...new Set(traces.flatMap((trace) => Object.keys(trace.verdict.components)))];
    const gates = [...new Set(traces.flatMap((trace) => Object.keys(trace.verdict.gates)))];
    const gateText = (tripped) => (tripped === undefined ? "–" : tripped ? "tripped" : "not tripped");
    const lines = [
      ...(rows.some((row) => row.externalName !== null) ? [["external score", (row) => externalMark(row)]] : []),
      [rows.some((row) => row.externalName !== null) ? "reward's verdict" : "outcome", (row) => outcomeMark(row)], ["reward", (row) => num(row.reward, 4)],
      ["task", (row) => row.task ?? "–"], ["model", (row) => row.model ?? "–"], ["file", (row) => row.fileName],
      ...names.map((name) => [name, (row, trace) => num(own(trace.verdict.components, name), 4)]),
      ...gates.map((name) => [`gate ${name}`, (row, trace) => gateText(own(trace.verdict.gates, name))]),
      ["ended", (row) => row.ended], ["turns", (row) => int(row.turns)],
      ["tokens in / out", (row) => `${int(row.tokensIn)} / ${int(row.tokensOut)}`],
      ["cost", (row) => dollars(row.cost)], ["time", (row) => seconds(row.seconds)],
    ].map(([name, of]) => {
      const [a, b] = rows.map((row, k) => of(row, traces[k]));
      const plain = (value) => (value instanceof Node ? value.textContent : value);
      return { name, values: [a, b], differs: plain(a) !== plain(b) };
    });
    const shown = lines.filter((line, k) => k < 2 || line.differs);
    const same = lines.filter((line, k) => k >= 2 && !line.differs);
    const table = (some, head) => el("table.plain.summary", {}, head, el("tbody", {}, some.map(({ name, values, differs }) =>
      el(differs ? "tr.differs" : "tr", {}, el("th", { scope: "row" }, visible(name)),
         values.map((value) => el("td", {}, value instanceof Node ? value : visible(visibleText(value, 200))))))));
    return [
      table(shown, el("thead", {}, el("tr", {}, el("th"), rows.map((row, k) => el("th", {},
        el("a", { href: this.app.linkTo(row) }, `${"AB"[k]}: sample ${row.sample}`)))))),
      lazyDetails(`${plural(same.length, "fact")} the same in both`, () => table(same, null)),
    ];
  }

  _conversation(a, b) {
    const [left, right] = [sectionsOf(a), sectionsOf(b)];
    const length = Math.max(left.length, right.length);
    let first = 0;
    while (first < length && sameValue(left[first]?.texts, right[first]?.texts)) first += 1;
    if (first === length) {
      return [el("p.empty", {}, "The two conversations are identical."), this._pairs(left, right, 0, length)];
    }
    const same = first ? lazyDetails(`the same in both: ${first === 1 ? "the opening" : `the opening and ${plural(first - 1, "turn")}`}`,
                                     () => this._pairs(left, right, 0, first)) : null;
    return [same, el("p.divergence", { id: "divergence" }, `first difference: ${(left[first] || right[first]).title.toLowerCase()}`),
            this._pairs(left, right, first, length)];
  }

  _pairs(left, right, from, to) {
    const pairs = [];
    for (let k = from; k < to; k += 1) {
      const [a, b] = [left[k], right[k]];
      pairs.push(el("div.pair", {}, this._side(a, b), this._side(b, a)));
    }
    return pairs;
  }

  _side(section, other) {
    if (!section) return el("div.side.nothing", {}, el("p.quiet", {}, "over by then"));
    return el("div.side", {}, el("h3", {}, section.title), section.texts.map(([role, text], k) => {
      const beside = other?.texts[k];
      const differs = beside && (beside[1] !== text);
      const highlight = differs ? differingPart(text, beside[1]) : null;
      return messageBox({ role, content: text }, { highlight, who: beside && !differs && beside[0] === role ? `${role} (same)` : role, first: 2000 });
    }));
  }
}

/** The opening and each turn, as pairs of role and text. */
function sectionsOf(trace) {
  const textOf = (message, calls) => [String(message.role), [contentText(message.content), ...calls].filter(Boolean).join("\n")];
  const callText = (call) => `→ ${call.name}(${valueText(call.arguments ?? call.raw_arguments)})`;
  return [
    { title: "Opening", texts: openingOf(trace).map((message) => textOf(message, askedIn(message).map(callText))) },
    ...trace.turns.map((turn) => ({
      title: `Turn ${turn.index + 1}`,
      texts: [
        textOf(turn.message, turn.message.tool_calls?.length ? turn.calls.map(callText) : []),
        ...turn.replies.map((reply) => textOf(reply, [])),
      ],
    })),
  ];
}

/** The part of a text that another one hasn't: between what they begin and end with alike. */
function differingPart(text, other) {
  const most = Math.min(text.length, other.length);
  let from = 0;
  while (from < most && text[from] === other[from]) from += 1;
  let tail = 0;
  while (tail < most - from && text[text.length - 1 - tail] === other[other.length - 1 - tail]) tail += 1;
  const to = text.length - tail;
  return [from && cutAt(text, from), to && to < text.length && cutAt(text, to) < to ? to + 1 : to];
}
