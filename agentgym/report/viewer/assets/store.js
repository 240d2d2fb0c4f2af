// The episodes: rows for the list, all of them in memory; bodies one by one, when they are looked at.
// A page on disk has the bodies in itself, deflated; a served page asks for them.

class Store {
  constructor() {
    this.rows = [];
    this.files = [];
    this.notes = [];
    this.reading = false;
    this.times = 0; // that rows were thrown away for others
    this.byId = new Map();
    this.byGroup = new Map();
    this.byTask = new Map();
    this.latest = new Map();
    this.components = new Set();
    this.external = false; // whether an external score is known of any
    this.onChange = () => {};
  }

  /** Take in rows, which come as columns by name. */
  add(columns, lines) {
    for (const line of lines) {
      const row = { number: this.rows.length };
      columns.forEach((name, k) => { row[name] = line[k]; });
      const file = this.files[row.file] || { name: "?" };
      row.fileName = file.name;
      row.step = file.step ?? null;
      for (const name in row.components) this.components.add(name);
      this.external ||= row.externalName !== null;
      this.rows.push(row);
      this._file(this.byId, row.id, row);
      this._file(this.byTask, JSON.stringify([row.env, row.task]), row);
      if (row.group !== null) this._file(this.byGroup, JSON.stringify([row.file, row.group]), row);
      this._supersede(row);
    }
  }

  _file(map, key, row) {
    const found = map.get(key);
    if (found) found.push(row);
    else map.set(key, [row]);
  }

  /** The last line of an episode in a file counts; those before it are superseded. */
  _supersede(row) {
    const key = JSON.stringify([row.file, row.task, row.sample, row.task === null ? row.id : ""]);
    const before = this.latest.get(key);
    if (before) before.superseded = true;
    row.superseded = false;
    this.latest.set(key, row);
  }

  clear() {
    this.times += 1;
    this.rows = [];
    this.external = false;
    this.components.clear();
    for (const map of [this.byId, this.byGroup, this.byTask, this.latest]) map.clear();
  }

  /** The row of a link: its id, its file where several have it, and which verdict if not the last. */
  find({ id, file, judged }) {
    const all = this.byId.get(id) || [];
    const inFile = all.filter((row) => row.fileName === file);
    const found = inFile.length ? inFile : all;
    return found[judged - 1] || found[found.length - 1] || null;
  }

  /** How a link names a row. A conversation that is judged again has its id on several lines. */
  reference(row) {
    const all = this.byId.get(row.id) || [];
    const inFile = all.filter((other) => other.file === row.file);
    const place = inFile.indexOf(row);
    const link = { id: row.id };
    if (all.length > inFile.length) link.file = row.fileName;
    if (place < inFile.length - 1) link.judged = place + 1;
    return link;
  }

  siblings(row) {
    return row.group === null ? [] : this.byGroup.get(JSON.stringify([row.file, row.group])) || [];
  }

  /** Episodes of the same task that are not of its group: another step, another model. */
  sameTask(row) {
    if (row.task === null) return [];
    const group = new Set(this.siblings(row));
    return (this.byTask.get(JSON.stringify([row.env, row.task])) || [])
      .filter((other) => !group.has(other) && other !== row);
  }
}

/** The bodies lie in this page, some hundred kilobytes of them in each block. */
class EmbeddedStore extends Store {
  constructor() {
    super();
    this.decoded = new Map();
  }

  async start() {
    const index = await this._decode("index");
    this.files = index.files;
    this.notes = index.notes;
    this.add(index.columns, index.rows);
    this.onChange();
  }

  async _decode(id) {
    return JSON.parse(await this._text(id));
  }

  async _text(id) {
    const node = document.getElementById(id);
    if (!node) throw new Error(`this page is cut short: its part "${id}" is missing`);
    const bytes = Uint8Array.from(atob(node.textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(stream).text();
  }

  async _block(number) {
    const kept = this.decoded.get(number);
    if (kept) return kept;
    const block = await this._decode("block-" + number);
    this.decoded.set(number, block);
    if (this.decoded.size > 4) this.decoded.delete(this.decoded.keys().next().value);
    return block;
  }

  async body(row) {
    return (await this._block(row.block))[row.place];
  }

  /** Rows from one on whose conversation has a text, block by block; `found` is told as they come. */
  async search(text, from, signal, found) {
    const needle = text.toLowerCase();
    const asWritten = /^[ -~]*$/.test(needle) && !/["\\]/.test(needle); // JSON has it no other way
    for (let at = from; at < this.rows.length && !signal.aborted;) {
      const { block } = this.rows[at];
      let end = at;
      while (end < this.rows.length && this.rows[end].block === block) end += 1;
      const json = await this._text("block-" + block);
      if (signal.aborted) return;
      const bodies = asWritten && !json.toLowerCase().includes(needle) ? null : JSON.parse(json);
      const hits = bodies ? this.rows.slice(at, end).filter((row) => conversationHas(bodies[row.place].trace, needle)) : [];
      found(hits.map((row) => row.number), end);
      at = end;
    }
  }
}

/** The bodies are asked for; so are rows, again and again, since episodes are being appended. */
class ServedStore extends Store {
  constructor() {
    super();
    this.generation = null;
  }

  async start() {
    await this._poll();
    const again = async () => {
      if (document.visibilityState === "visible" || this.reading) await this._poll();
      setTimeout(again, this.reading ? 200 : 2000);
    };
    setTimeout(again, this.reading ? 200 : 2000);
  }

  async _ask(path, params) {
    const reply = await fetch(`${path}?${new URLSearchParams(params)}`);
    if (!reply.ok) throw new Error((await reply.text()).trim() || `the viewer says ${reply.status}`);
    return reply.json();
  }

  async _poll() {
    let news;
    try {
      news = await this._ask("api/rows", { generation: this.generation ?? "", after: this.rows.length });
    } catch (error) {
      this.lost = "the viewer no longer answers; start `agentgym view` again";
      this.onChange();
      return;
    }
    const again = news.generation !== this.generation;
    const changed = again || this.lost || news.rows.length || news.reading !== this.reading ||
      news.notes.join("\n") !== this.notes.join("\n");
    if (again) this.clear();
    Object.assign(this, { lost: null, generation: news.generation, files: news.files,
                          notes: news.notes, reading: news.reading });
    this.add(news.columns, news.rows);
    if (changed) this.onChange();
    if (news.more) await this._poll();
  }

  body(row) {
    return this._ask("api/episode", { generation: this.generation, row: row.number });
  }

  async search(text, from, signal, found) {
    for (let after = from; after < this.rows.length && !signal.aborted;) {
      const part = await this._ask("api/search", { generation: this.generation, text, after });
      if (signal.aborted) return;
      found(part.rows, part.next);
      after = part.next;
    }
  }
}

/** Whether what was said, called or judged has a text, given in lower case. */
function conversationHas(trace, needle) {
  const has = (value) => {
    if (typeof value === "string") return value.toLowerCase().includes(needle);
    if (value === null || typeof value !== "object") return false;
    return Object.values(value).some(has);
  };
  return [trace.messages, trace.turns.map((turn) => turn.reasoning), trace.answer,
          trace.verdict.reason, trace.error, trace.earlier].some(has);
}
