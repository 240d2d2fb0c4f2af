// The list: filter, sort, search, and only the rows in sight in the page.

const ROW_PX = 32;
const SPARE_ROWS = 10;
const PRINTED_ROWS = 2000;
const GAP_PX = 10;
const EDGE_PX = 14;

// Of those with `varies`, a column in which nothing does is left out; with `some`, one without values.
const COLUMNS = [
  { name: "external", label: "external score", width: "134px", cell: externalMark, some: (row) => row.externalName !== null },
  { name: "outcome", label: ({ external }) => (external ? "reward's verdict" : "outcome"), width: "136px", cell: outcomeMark },
  { name: "reward", label: "reward", width: "74px", right: true, cell: (row) => num(row.reward) },
  { name: "task", label: "task", width: "minmax(180px, 2fr)", cell: taskCell },
  { name: "sample", label: "#", width: "38px", right: true, cell: (row) => row.sample },
  { name: "env", label: "env", width: "minmax(80px, 0.7fr)", cell: (row) => textCell(row.env.split("/").pop(), row.env), varies: (row) => row.env },
  { name: "model", label: "model", width: "minmax(60px, 0.6fr)", cell: (row) => textCell(row.model), varies: (row) => row.model },
  { name: "file", label: "file", width: "minmax(90px, 0.8fr)", cell: fileCell, varies: (row) => row.file },
  { name: "step", label: "step", width: "50px", right: true, cell: (row) => row.step ?? "–", varies: (row) => row.step },
  { name: "turns", label: "turns", width: "60px", right: true, cell: (row) => row.turns },
  { name: "calls", label: "calls", width: "60px", right: true, cell: callsCell },
  { name: "gates", label: "gates", width: "minmax(80px, 0.9fr)", cell: gateCell, some: (row) => row.gates.length },
  { name: "tokens", label: "tokens", width: "68px", right: true, cell: tokensCell, some: (row) => row.tokensIn !== null },
  { name: "cost", label: "cost", width: "72px", right: true, cell: (row) => dollars(row.cost), some: (row) => row.cost },
  { name: "seconds", label: "time", width: "64px", right: true, cell: (row) => seconds(row.seconds) },
];

function outcomeMark(row) {
  if (row.masked) {
    return el("span.outcome.masked", { title: "no score: " + (row.failureClass || "masked") },
              "⊘ " + (row.failureClass || "masked"));
  }
  if (row.correct === true) return el("span.outcome.solved", {}, "✓ solved");
  if (row.correct === null) return el("span.outcome.open", { title: "nobody can tell" }, "? scored");
  if (row.truncated) return el("span.outcome.unsolved", { title: row.ended }, "✗ cut off");
  return el("span.outcome.unsolved", {}, row.completed ? "✗ wrong" : "✗ no answer");
}

/** What an evaluation counts; the outcome beside it is the reward's. */
function externalMark(row) {
  if (row.externalName === null) return el("span.quiet", { title: "no evaluation's result has this episode" }, "–");
  const title = visibleText(row.externalName) + (disagreed(row) ? "; the reward's verdict says otherwise" : "");
  if (row.externallySolved === null) return el("span.outcome.masked", { title: title + ": no score" }, "⊘ no score");
  const value = row.external === 1 || row.external === 0 ? "" : ` ${num(row.external)}`;
  return el(row.externallySolved ? "span.outcome.solved" : "span.outcome.unsolved", { title },
            (row.externallySolved ? "✓ solved" : "✗ unsolved") + value, disagreed(row) ? el("b.bad", {}, " ≠") : null);
}

function textCell(text, title = null) {
  if (text === null || text === undefined) return "–";
  return el("span", { title: visibleText(title || text) }, visible(visibleText(text)));
}

/** A file's name without what all of them begin with; there is little room. */
function fileCell(row, list) {
  return textCell(row.fileName.slice(list.sharedStart).replace(/\.jsonl$/, ""), row.fileName);
}

/** The length of what all names begin with, up to a "/" or "-". */
function sharedStart(names) {
  let shared = names[0] || "";
  for (const name of names) while (!name.startsWith(shared)) shared = shared.slice(0, -1);
  return Math.max(shared.lastIndexOf("/"), shared.lastIndexOf("-")) + 1;
}

function taskCell(row) {
  return el("span", { title: visibleText(row.opening || "") }, visible(visibleText(row.task ?? "no task yet")),
            row.opening ? el("span.quiet", {}, " ", visible(visibleText(row.opening, 100))) : null);
}

function callsCell(row) {
  if (!row.malformed) return row.calls;
  return el("span", { title: plural(row.malformed, "malformed call") }, row.calls, el("b.bad", {}, ` ${row.malformed}✗`));
}

function gateCell(row) {
  if (!row.gates.length) return "";
  const names = row.gates.join(", ");
  return el("span.bad", { title: visibleText(names) }, visible(visibleText(names)));
}

function tokensCell(row) {
  if (row.tokensIn === null) return "–";
  const title = `${int(row.tokensIn)} in (${share(row.tokensCached, row.tokensIn)} cached), ${int(row.tokensOut)} out`;
  return el("span", { title }, compact(row.tokensIn + row.tokensOut));
}

class ListView {
  constructor(app) {
    this.app = app;
    this.rows = [];
    this.selected = null;
    this.state = { q: "", text: "", sort: "" };
    this.hits = null;
    this.printing = false;
    this.node = this._build();
  }

  _build() {
    const filter = (name, label, choices) => el("label.pick", {}, label, el("select", {
      name, "aria-label": label, change: (event) => this._pick(name, event.target.value),
    }, el("option", { value: "" }, "any"), choices.map(([value, text]) => el("option", { value }, text))));
    this.input = el("input", {
      type: "search", placeholder: "filter: words, reward>0.5, gate:malformed, is:masked …  ( / )",
      "aria-label": "filter", spellcheck: "false", autocomplete: "off",
      input: () => this._set({ q: this.input.value }),
    });
    this.textInput = el("input", {
      type: "search", placeholder: "search in the conversations  ( t )",
      "aria-label": "search in the conversations", spellcheck: "false", autocomplete: "off",
      input: () => { clearTimeout(this.typing); this.typing = setTimeout(() => this._set({ text: this.textInput.value }), 300); },
      keydown: (event) => { if (event.key === "Enter") this._set({ text: this.textInput.value }); },
    });
    this.picks = {
      is: filter("is", "outcome", ["solved", "unsolved", "masked", "truncated", "malformed", "repeated"].map((x) => [x, x])),
      env: filter("env", "env", []), model: filter("model", "model", []), class: filter("class", "failure", []), gate: filter("gate", "gate", []),
      file: filter("file", "file", []),
    };
    this.count = el("span.count", { role: "status" });
    this.hint = el("p.hint", { role: "alert" });
    this.head = el("div.row.head", { role: "row" });
    this.space = el("div.space");
    this.scroller = el("div.scroller", { tabindex: "-1", scroll: () => this._draw() }, this.head, this.space);
    this.table = el("div.grid", { role: "grid", "aria-label": "episodes", tabindex: "0" }, this.scroller);
    new ResizeObserver(() => this._draw()).observe(this.scroller);
    for (const [event, printing] of [["beforeprint", true], ["afterprint", false]]) {
      window.addEventListener(event, () => { this.printing = printing; this._draw(); });
    }
    return el("main.list", {},
      el("div.tools", {}, this.input, this.textInput),
      el("div.tools", {}, Object.values(this.picks), this.count), this.hint, this.table);
  }

  /** Show the list as a link says. */
  show(params) {
    const before = this.state.text;
    this.state = { q: params.get("q") || "", text: params.get("text") || "", sort: params.get("sort") || "" };
    this.input.value = this.state.q;
    this.textInput.value = this.state.text;
    if (this.state.text !== before) this._searchText();
    this.refresh();
    if (this.selected) this._scrollTo(this.rows.indexOf(this.selected));
  }

  params() {
    return Object.fromEntries(Object.entries(this.state).filter(([, value]) => value));
  }

  _set(change) {
    const textBefore = this.state.text;
    Object.assign(this.state, change);
    this.app.replaceLink({ view: "list", ...this.params() });
    if (this.state.text !== textBefore) this._searchText();
    this.refresh();
    this.scroller.scrollTop = 0;
  }

  _pick(name, value) {
    this.input.value = withTerm(this.state.q, name, name === "is" ? ":" : "=", value);
    this._set({ q: this.input.value });
  }

  _searchText() {
    this.searching?.abort();
    this.searching = null;
    this.hits = this.state.text.trim() ? new Set() : null;
    this.searched = 0;
    this.times = this.app.store.times;
    this.searchOn();
  }

  /** Search in what wasn't searched yet: all of it, or what has been appended. */
  searchOn() {
    const { store } = this.app;
    if (this.hits && this.times !== store.times) {
      this._searchText(); // other rows: those found before are no longer there
      return;
    }
    if (!this.hits || this.searching || this.searched >= store.rows.length) return;
    const search = this.searching = new AbortController();
    let drawn = 0;
    store.search(this.state.text.trim(), this.searched, search.signal, (numbers, next) => {
      if (search.signal.aborted) return;
      numbers.forEach((number) => this.hits.add(number));
      this.searched = next;
      if (performance.now() - drawn > 400 || next >= store.rows.length) {
        drawn = performance.now();
        this.refresh();
      }
    }).catch((error) => this.app.complain(error)).finally(() => {
      if (this.searching === search) this.searching = null;
    });
  }

  /** Filter and sort anew. */
  refresh() {
    const { store } = this.app;
    const terms = parseQuery(this.state.q, store.components);
    const faults = terms.filter((term) => term.error).map((term) => `${term.source}: ${term.error}`);
    let rows = filterRows(store.rows, terms);
    if (this.hits) rows = rows.filter((row) => this.hits.has(row.number));
    this.rows = sortRows(rows, this.state.sort);
    if (!this.rows.includes(this.selected)) this.selected = this.rows[0] || null;
    replace(this.hint, visible(faults.join(" · ")));
    this._tell(store);
    this._fillPicks(store);
    this._chooseColumns(store);
    this._draw();
  }

  /** The figures; attempts that a later one supersedes have no part in them. */
  _tell(store) {
    const counting = this.rows.filter((row) => !row.superseded);
    const solved = counting.filter((row) => row.correct === true).length;
    const unscored = counting.filter((row) => row.masked).length;
    const superseded = this.rows.length - counting.length;
    const all = store.rows.filter((row) => !row.superseded).length;
    const parts = [counting.length === all ? plural(all, "episode") : `${int(counting.length)} of ${plural(all, "episode")}`];
    const open = counting.filter((row) => row.correct === null && !row.masked).length;
    if (store.external) {
      const byScore = counting.filter((row) => row.externallySolved === true).length;
      parts.push(`${int(byScore)} solved by the external score`);
    }
    if (counting.length > open) parts.push(`${int(solved)} solved` + (store.external ? " by the reward's verdict" : ""));
    if (open) parts.push(`${int(open)} of which nobody can tell`);
    if (unscored) parts.push(`${int(unscored)} without a score`);
    if (superseded) parts.push(`${int(superseded)} superseded`);
    if (this.hits && this.searched < store.rows.length) parts.push(`searching: ${share(this.searched, store.rows.length)}`);
    if (store.reading) parts.push("reading …");
    this.count.textContent = parts.join(" · ");
  }

  _fillPicks(store) {
    const is = this.picks.is.querySelector("select");
    if (store.external && ![...is.options].some((option) => option.value === EXTERNAL_FACTS[0])) {
      append(is, EXTERNAL_FACTS.map((value) => el("option", { value }, value)));
    }
    const values = { env: new Set(), model: new Set(), class: new Set(), gate: new Set(), file: new Set() };
    for (const row of store.rows) {
      values.env.add(row.env);
      values.model.add(row.model);
      if (row.failureClass) values.class.add(row.failureClass);
      row.gates.forEach((gate) => values.gate.add(gate));
      if (values.file.size < 500) values.file.add(row.fileName);
    }
    for (const [name, pick] of Object.entries(this.picks)) {
      const select = pick.querySelector("select");
      const chosen = parseQuery(this.state.q, store.components)
        .find((term) => term.field === name && !term.not)?.value || "";
      if (name !== "is") {
        const known = [...values[name]].filter((value) => value !== null).sort(COLLATOR.compare);
        if (known.some((value, k) => select.options[k + 1]?.value !== value) || select.options.length !== known.length + 1) {
          replace(select, el("option", { value: "" }, "any"),
                  known.map((value) => el("option", { value }, visible(visibleText(value, 60)))));
        }
        const few = name === "class" || name === "gate" ? 1 : 2; // fewer leave nothing to choose
        pick.hidden = known.length < few;
      }
      select.value = [...select.options].some((option) => option.value === chosen) ? chosen : "";
    }
  }

  _chooseColumns(store) {
    const { rows, files } = store;
    this.sharedStart = sharedStart(files.map((file) => file.name));
    this.columns = COLUMNS.filter(({ varies, some }) =>
      (!varies || rows.some((row) => varies(row) !== varies(rows[0]))) && (!some || rows.some(some)));
    this.node.style.setProperty("--columns", this.columns.map((column) => column.width).join(" "));
    const least = this.columns.reduce((sum, column) => sum + parseInt(column.width.match(/\d+/)[0], 10) + GAP_PX, 2 * EDGE_PX);
    this.node.style.setProperty("--least", `${least}px`);
    replace(this.head, this.columns.map((column) => {
      const down = this.state.sort === "-" + column.name;
      const up = this.state.sort === column.name;
      return el(column.right ? "button.right" : "button", {
        type: "button", role: "columnheader", "data-sort": column.name,
        "aria-sort": up ? "ascending" : down ? "descending" : "none", title: "sort",
        click: () => this._set({ sort: down ? column.name : up ? "" : "-" + column.name }),
      }, typeof column.label === "function" ? column.label(store) : column.label, up ? " ▲" : down ? " ▼" : "");
    }));
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
  }

  _draw() {
    if (!this.columns) return;
    const height = this.scroller.clientHeight || 600;
    const top = this.printing ? 0 : Math.floor(this.scroller.scrollTop / ROW_PX) - SPARE_ROWS;
    const first = Math.max(0, top);
    const count = this.printing ? PRINTED_ROWS : Math.ceil(height / ROW_PX) + 2 * SPARE_ROWS;
    const last = Math.min(this.rows.length, first + count);
    this.space.style.height = `${this.rows.length * ROW_PX}px`;
    const rows = [];
    for (let k = first; k < last; k += 1) rows.push(this._row(this.rows[k], k));
    replace(this.space, rows);
    if (this.selected) this.table.setAttribute("aria-activedescendant", `row-${this.selected.number}`);
    if (!this.rows.length) append(this.space, [el("p.empty", {}, this._nothing())]);
    if (this.printing && last < this.rows.length) append(this.space, [el("p.empty", {}, `and ${plural(this.rows.length - last, "more episode")}`)]);
  }

  _nothing() {
    const { store } = this.app;
    if (!store.rows.length) return store.reading ? "Reading the traces …" : "No episodes here yet.";
    if (this.hits && this.searched < store.rows.length) return "Searching …";
    return "No episode matches. Esc in the filter clears it.";
  }

  _row(row, place) {
    const classes = [row === this.selected ? ".selected" : "", row.superseded ? ".superseded" : "",
                     row === this.app.marked ? ".marked" : ""].join("");
    return el("div.row" + classes, {
      id: `row-${row.number}`, role: "row", "aria-rowindex": place + 2, "aria-selected": String(row === this.selected),
      "data-id": row.id, style: { top: `${place * ROW_PX}px` },
      title: row.superseded ? "superseded: the episode was played or judged again" : null,
      click: () => { this.selected = row; this.app.openEpisode(row); },
    }, this.columns.map((column) =>
      el(column.right ? "span.right" : "span", { role: "gridcell" }, column.cell(row, this))));
  }

  move(by) {
    const at = this.rows.indexOf(this.selected);
    this.moveTo(at < 0 ? 0 : at + by);
  }

  moveTo(place) {
    if (!this.rows.length) return;
    const k = Math.max(0, Math.min(this.rows.length - 1, place));
    this.selected = this.rows[k];
    this._scrollTo(k);
    this._draw();
  }

  _scrollTo(place) {
    if (place < 0) return;
    const top = place * ROW_PX, height = this.scroller.clientHeight - ROW_PX; // less the head
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + ROW_PX > this.scroller.scrollTop + height) this.scroller.scrollTop = top + ROW_PX - height;
  }

  clear() {
    this.input.value = this.textInput.value = "";
    this._set({ q: "", text: "" });
  }
}
