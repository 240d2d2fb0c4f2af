// The page of one episode.

const SIBLINGS_SHOWN = 200;

class EpisodeView {
  constructor(app) {
    this.app = app;
    this.node = el("main.episode", { tabindex: "-1" });
    this.turn = -1;
  }

  async show(params) {
    const { store } = this.app;
    const row = store.find(Object.fromEntries(params));
    this.row = row;
    this.turn = -1;
    if (!row) {
      const reading = store.reading ? " so far; the traces are still being read" : "";
      replace(this.node, el("p.empty", {}, "No episode ", visible(visibleText(params.get("id") || "")), " here" + reading + "."));
      return;
    }
    replace(this.node, el("p.empty", {}, "Reading …"));
    const body = await store.body(row);
    if (this.row !== row) return; // another one was opened meanwhile
    const { trace, ids } = body;
    this.bar = el("div.bar");
    this.drawBar();
    replace(this.node,
      this.bar,
      el("div.columns", {},
        el("div.conversation", {}, this._conversation(trace, ids)),
        el("aside", {}, externalPanel(row), verdictPanel(row, trace), errorPanel(trace), earlierPanel(trace),
          this._siblings(row), usagePanel(row, trace), originPanel(row, trace))));
    this.node.scrollTop = 0;
    this.node.focus({ preventScroll: true }); // so that the keys scroll it
    const turn = params.get("turn");
    if (turn !== null) this.goToTurn(Number(turn) - 1, { link: false });
  }

  drawBar() {
    const { row } = this;
    const { list } = this.app;
    const at = list.rows.indexOf(row);
    const step = (by, label, key) => {
      const other = list.rows[at + by];
      return el("button", { type: "button", title: `${label} episode of the list (${key})`, disabled: at < 0 || !other,
                            click: () => this.app.openEpisode(other) }, label);
    };
    replace(this.bar,
      el("button", { type: "button", title: "back to the list (Esc)", click: () => this.app.openList() }, "← list"),
      step(-1, "previous", "p"), step(1, "next", "n"),
      el("h1", {}, visible(visibleText(row.task ?? row.env, 120)), el("span.quiet", {}, ` sample ${row.sample}`)),
      row.superseded ? el("span.badge.warn", {}, "superseded by a later attempt") : null,
      el("button", { type: "button", title: "remember this episode, to put another one beside it (x)",
                     click: () => this.app.mark(row) }, row === this.app.marked ? "marked" : "mark"),
      this.app.marked && this.app.marked !== row
        ? el("button", { type: "button", title: "side by side with the marked one (c)", click: () => this.app.compare(this.app.marked, row) }, "compare with marked")
        : null);
  }

  _conversation(trace, ids) {
    const opening = openingOf(trace);
    const shown = opening.length + trace.turns.reduce((sum, turn) => sum + 1 + turn.replies.length, 0);
    const rest = trace.messages.slice(shown);
    return [
      opening.length ? el("article.turn", { id: "opening" }, el("header.turn-line", {}, el("h3", {}, "Opening")),
        opening.map((message) => messageBox(message))) : null,
      trace.turns.map((turn, k) => turnBox(turn, ids[k])),
      rest.length && trace.turns.length ? el("article.turn", {}, el("header.turn-line", {}, el("h3", {}, "After the last turn")),
        rest.map((message) => messageBox(message))) : null,
      trace.messages.length ? null : el("p.empty", {}, "No messages: the episode ended before it began."),
    ];
  }

  _siblings(row) {
    const { store } = this.app;
    const group = store.siblings(row);
    const others = store.sameTask(row);
    const lines = (rows) => table(["", "reward", "turns", "from", ""], rows.slice(0, SIBLINGS_SHOWN).map((other) => [
      outcomeMark(other), num(other.reward), int(other.turns),
      other === row ? el("b", {}, "this one")
        : el("a", { href: this.app.linkTo(other) }, visible(visibleText(this._from(row, other), 60))),
      other === row ? "" : el("a", { href: this.app.compareLink(row, other) }, "compare"),
    ]), { right: [1, 2] });
    const more = (rows) => (rows.length > SIBLINGS_SHOWN ? el("p.quiet", {}, `and ${int(rows.length - SIBLINGS_SHOWN)} more`) : null);
    if (group.length < 2 && !others.length) return null;
    return panel("Siblings",
      group.length > 1 ? [el("h3", {}, `its group: ${plural(group.length, "rollout")}`), lines(group), more(group)] : null,
      others.length ? lazyDetails(`same task elsewhere: ${plural(others.length, "episode")}`, () => [lines(others), more(others)],
                                  { open: group.length < 2 }) : null);
  }

  _from(row, other) {
    const parts = [`sample ${other.sample}`];
    if (other.model !== row.model) parts.push(other.model);
    if (other.file !== row.file) parts.push(other.step !== null ? `step ${other.step}` : other.fileName);
    return parts.join(" · ");
  }

  /** Show a turn, and let the link name it. */
  goToTurn(index, { link = true } = {}) {
    const turns = [...this.node.querySelectorAll("article.turn[id^=turn-]")];
    if (!turns.length || Number.isNaN(index)) return;
    this.turn = Math.max(0, Math.min(turns.length - 1, index));
    turns.forEach((node, k) => node.classList.toggle("current", k === this.turn));
    turns[this.turn].scrollIntoView({ block: "start" });
    if (link) this.app.replaceLink({ view: "episode", ...this.app.store.reference(this.row), turn: this.turn + 1 });
  }
}
