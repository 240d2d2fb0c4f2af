// What is shown follows from the address's part after #, so that every view has a link.

class App {
  constructor(store) {
    this.store = store;
    this.marked = null;
    this.list = new ListView(this);
    this.episode = new EpisodeView(this);
    this.comparison = new CompareView(this);
    this.help = helpDialog();
    this.alert = el("p.alert", { role: "alert", hidden: true });
    this.notes = el("details.notes", { hidden: true });
    this.content = el("div.content");
    this.markedLabel = el("span.marked-label", { hidden: true });
    append(document.body, [this._header(), this.alert, this.notes, this.content, this.help]);
    window.addEventListener("hashchange", () => this.route());
    document.addEventListener("keydown", (event) => onKey(this, event));
    store.onChange = () => this._onNews();
  }

  _header() {
    return el("header.top", {},
      el("a.name", { href: "#view=list" }, visible(document.title)), this.markedLabel,
      el("button", { type: "button", title: "dark or light (d)", click: () => this.toggleTheme() }, "◐ theme"),
      el("button", { type: "button", title: "keys and filters (?)", click: () => this.help.showModal() }, "? help"));
  }

  async start() {
    try {
      await this.store.start();
      await this.route();
    } catch (error) {
      this.complain(error);
    }
  }

  /** Show what the address names. */
  async route() {
    const params = new URLSearchParams(location.hash.slice(1));
    const views = { episode: this.episode, compare: this.comparison };
    const view = own(views, params.get("view")) || this.list;
    this.view = view;
    replace(this.content, view.node);
    this.alert.hidden = true;
    try {
      await view.show(params);
    } catch (error) {
      this.complain(error);
    }
    this.ready = location.hash;
  }

  complain(error) {
    replace(this.alert, visible(visibleText(error.message || String(error), 1000)));
    this.alert.hidden = false;
  }

  _onNews() {
    const { lost, notes } = this.store;
    if (lost) this.complain(lost);
    else this.alert.hidden = true;
    replace(this.notes, el("summary", {}, plural(notes.length, "remark") + " on the files"),
            el("ul", {}, notes.map((note) => el("li", {}, visible(note)))));
    this.notes.hidden = !notes.length;
    this.list.searchOn();
    this.list.refresh(); // also for n and p of an episode that a link led to
    const here = (row) => row && this.store.rows[row.number] === row; // and not one of before
    if (this.marked && !here(this.marked)) this._setMark(null);
    if (this.view === this.episode ? !here(this.episode.row) : this.view === this.comparison && !this.comparison.rows.every(here)) this.route();
  }

  // --- links --------------------------------------------------------------------------------

  link(params) {
    return "#" + new URLSearchParams(params);
  }

  linkTo(row) {
    return this.link({ view: "episode", ...this.store.reference(row) });
  }

  compareLink(a, b) {
    const [one, other] = [this.store.reference(a), this.store.reference(b)];
    const params = { view: "compare", a: one.id, b: other.id };
    for (const [side, link] of [["a", one], ["b", other]]) {
      if (link.file) params[side + "file"] = link.file;
      if (link.judged) params[side + "judged"] = link.judged;
    }
    return this.link(params);
  }

  openList() {
    location.hash = this.link({ view: "list", ...this.list.params() });
  }

  openEpisode(row) {
    this.list.selected = row;
    location.hash = this.linkTo(row);
  }

  compare(a, b) {
    location.hash = this.compareLink(a, b);
  }

  /** With the marked episode, or else with the next of its group. */
  compareWith(row) {
    if (!row) return;
    const group = this.store.siblings(row);
    const sibling = group[(group.indexOf(row) + 1) % group.length];
    const other = this.marked && this.marked !== row ? this.marked : sibling;
    if (other && other !== row) this.compare(other, row);
    else this.complain("mark another episode with x first: this one has no siblings");
  }

  /** Change the link without a step in the history. */
  replaceLink(params) {
    history.replaceState(null, "", this.link(params));
  }

  /** Remember an episode, or forget it. */
  mark(row) {
    if (!row) return;
    this._setMark(this.marked === row ? null : row);
    if (this.view === this.list) this.list.refresh();
    else this.episode.drawBar();
  }

  _setMark(row) {
    this.marked = row;
    const text = row ? `marked: ${visibleText(row.task ?? row.id, 40)} #${row.sample} – c compares` : "";
    replace(this.markedLabel, visible(text));
    this.markedLabel.hidden = !row;
  }

  toggleTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }
}

const served = document.documentElement.dataset.served !== undefined;
const app = new App(served ? new ServedStore() : new EmbeddedStore());
app.start();
