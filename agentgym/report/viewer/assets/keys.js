// The keyboard, and the page that explains it.

const KEYS = [
  ["j / k", "next / previous episode; in an episode, next / previous turn"],
  ["↓ ↑, Page, Home, End", "in the list, like j and k; elsewhere they scroll"],
  ["Enter", "open the episode"],
  ["/", "filter the list"],
  ["t", "search in the conversations"],
  ["g / G", "first / last"],
  ["n / p", "in an episode: next / previous one of the list"],
  ["x", "mark an episode, to put another one beside it"],
  ["c", "side by side: the marked episode, or a sibling, with this one"],
  ["d", "dark or light"],
  ["Esc", "clear the filter; back to the list"],
  ["?", "this page"],
];
const FILTERS = [
  ["chair boho", "both words, in task, env, model, file, gates, first message"],
  ["reward>=0.5 turns<4", "numbers: reward, turns, calls, malformed, cost, tokens, seconds, step, sample, external, and components by name"],
  ["\"exact match\"<1", "a component whose name has spaces"],
  ["gate:malformed", "part of a name: gate, env, task, id, group, split, model, file, class, stage, ended, seed"],
  ["env=agentgym/WebShop-v0", "the whole of it"],
  ["is:masked", "solved, unsolved, completed, masked, scored, truncated, malformed, cutoff, repeated, superseded"],
  ["is:disagreed", "external score and reward's verdict differ; also external-solved, external-unsolved, external-unscored"],
  ["-is:solved", "not"],
  ["task:\"two words\"", "with spaces"],
];

function helpDialog() {
  const lines = (pairs, kind) => el("table.plain", {}, pairs.map(([key, text]) => el("tr", {}, el("td", {}, el(kind, {}, key)), el("td", {}, text))));
  return el("dialog", { "aria-label": "help", click: (event) => { if (event.target.tagName === "DIALOG") event.target.close(); } },
    el("h2", {}, "Keys"), lines(KEYS, "kbd"), el("h2", {}, "Filter"), lines(FILTERS, "code"));
}

function isTyping(target) {
  return ["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName);
}

function onKey(app, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || app.help.open) return;
  if (isTyping(event.target)) return onKeyInField(app, event);
  const action = { ...anywhere(app), ...(app.view === app.list ? inList(app) : app.view === app.episode ? inEpisode(app) : {}) }[event.key];
  if (!action) return;
  if (event.key === "Enter" && event.target.closest("button, a, summary")) return;
  event.preventDefault();
  action();
}

function onKeyInField(app, event) {
  if (event.key === "Escape") {
    event.preventDefault();
    if (event.target.value) app.list.clear();
    event.target.blur();
  } else if (event.key === "Enter" || event.key === "ArrowDown") {
    if (event.target.tagName === "SELECT") return;
    event.preventDefault();
    event.target.blur();
  }
}

function anywhere(app) {
  const focus = (name) => () => { if (app.view !== app.list) app.openList(); app.list[name].focus(); };
  return {
    "/": focus("input"), t: focus("textInput"), "?": () => app.help.showModal(), d: () => app.toggleTheme(),
    Escape: () => (app.view === app.list ? app.list.clear() : app.openList()),
  };
}

function inList(app) {
  const { list } = app;
  const selected = (act) => () => list.selected && act(list.selected);
  const page = Math.max(1, Math.floor(list.scroller.clientHeight / ROW_PX) - 1);
  return {
    j: () => list.move(1), k: () => list.move(-1), ArrowDown: () => list.move(1), ArrowUp: () => list.move(-1),
    PageDown: () => list.move(page), PageUp: () => list.move(-page),
    g: () => list.moveTo(0), Home: () => list.moveTo(0), G: () => list.moveTo(Infinity), End: () => list.moveTo(Infinity),
    Enter: selected((row) => app.openEpisode(row)), x: selected((row) => app.mark(row)), c: selected((row) => app.compareWith(row)),
  };
}

function inEpisode(app) {
  const { episode, list } = app;
  const other = (by) => () => {
    const at = list.rows.indexOf(episode.row);
    if (at >= 0 && list.rows[at + by]) app.openEpisode(list.rows[at + by]);
  };
  return {
    j: () => episode.goToTurn(episode.turn + 1), k: () => episode.goToTurn(episode.turn - 1),
    g: () => episode.goToTurn(0), G: () => episode.goToTurn(Infinity), n: other(1), p: other(-1),
    x: () => app.mark(episode.row), c: () => app.compareWith(episode.row),
  };
}
