// Text of models and tools, shown so that nothing in it can deceive or hang the reader: characters
// that can't be seen become marks, and huge texts come in parts.

const FIRST_CHARS = 3000;
const MORE_CHARS = 50000;
const BEFORE_CHARS = 300; // of what is the same, before a difference

// Control characters but tab and line feed (and CR before LF), lone surrogates, and what reorders,
// hides or joins text: bidi controls, zero-width characters, tag characters. Joiners that scripts
// and emoji need (U+200C, U+200D) stay.
const UNSEEN = new RegExp(
  "([\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160" +
  "\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb" +
  "\\u{e0000}-\\u{e007f}\\p{Surrogate}]|\\r(?!\\n))\\1*", "gu");

const NAMES = {
  0x00: "null", 0x07: "bell", 0x08: "backspace", 0x0d: "carriage return", 0x1b: "escape",
  0x7f: "delete", 0xad: "soft hyphen", 0x200b: "zero-width space",
  0x200e: "left-to-right mark", 0x200f: "right-to-left mark", 0x202a: "left-to-right embedding",
  0x202b: "right-to-left embedding", 0x202c: "pop directional formatting",
  0x202d: "left-to-right override", 0x202e: "right-to-left override", 0x2066: "left-to-right isolate",
  0x2067: "right-to-left isolate", 0x2068: "first strong isolate", 0x2069: "pop directional isolate",
  0xfeff: "zero-width no-break space",
};

function codeName(code) {
  return "U+" + code.toString(16).toUpperCase().padStart(4, "0");
}

function codeTitle(code) {
  if (NAMES[code]) return NAMES[code];
  if (code >= 0xd800 && code <= 0xdfff) return "lone surrogate";
  return code >= 0xe0000 ? "tag character (hidden text)" : "invisible or control character";
}

/** Text as nodes, with a mark in place of each run of one unseen character. */
function visible(text) {
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > from) nodes.push(text.slice(from, match.index));
    const code = match[1].codePointAt(0);
    const times = match[0].length / match[1].length;
    const label = codeName(code) + (times > 1 ? "×" + times : "");
    nodes.push(el("span.unseen", { title: codeTitle(code) }, label));
    from = match.index + match[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

/** The same for one line where no element fits, such as a title or an option. */
function visibleText(text, limit = 300) {
  const cut = text.length > limit ? text.slice(0, cutAt(text, limit)) + "…" : text;
  return cut
    .replace(UNSEEN, (run, one) => "⟨" + codeName(one.codePointAt(0)) + "⟩")
    .replace(/\s+/g, " ");
}

/** Where to cut, without parting a surrogate pair. */
function cutAt(text, at) {
  const code = text.charCodeAt(at - 1);
  return code >= 0xd800 && code <= 0xdbff ? at - 1 : at;
}

/** A text of any length; what is long is folded and comes by and by, from the highlight on if any. */
function longText(text, { first = FIRST_CHARS, highlight = null } = {}) {
  const box = el("pre.text", { dir: "auto" });
  const long = text.length > first * 1.2;
  const from = long && highlight && highlight[0] > first / 2 ? cutAt(text, Math.max(1, highlight[0] - BEFORE_CHARS)) : 0;
  const end = text.length - from > first * 1.2 ? cutAt(text, from + first) : text.length;
  const shown = text.slice(from, end);
  append(box, highlight ? highlighted(shown, highlight.map((place) => Math.max(0, place - from))) : visible(shown));
  if (!from && end === text.length) return box;
  return el("div", {}, from ? earlierButton(box, text, from) : null, box,
            end < text.length ? moreButton(box, text, end) : null);
}

function earlierButton(box, text, from) {
  const label = () => `show what comes before: ${int(from)} characters, the same in both`;
  const button = el("button.more", {
    type: "button",
    click: () => {
      const begin = from > MORE_CHARS ? cutAt(text, from - MORE_CHARS) : 0;
      box.prepend(el("span.part", {}, visible(text.slice(begin, from))));
      from = begin;
      if (!from) button.remove();
      else button.textContent = label();
    },
  }, label());
  return button;
}

function moreButton(box, text, shown) {
  const label = () => `show more: ${int(text.length - shown)} of ${int(text.length)} characters are folded`;
  const button = el("button.more", {
    type: "button",
    click: () => {
      const next = cutAt(text, Math.min(text.length, shown + MORE_CHARS));
      box.append(el("span.part", {}, visible(text.slice(shown, next))));
      shown = next;
      if (shown >= text.length) button.remove();
      else button.textContent = label();
    },
  }, label());
  return button;
}

/** Text whose part [from, to) is marked as differing. */
function highlighted(text, [from, to]) {
  const [a, b] = [Math.min(from, text.length), Math.min(to, text.length)];
  return [
    ...visible(text.slice(0, a)),
    b > a ? el("mark", {}, visible(text.slice(a, b))) : null,
    ...visible(text.slice(b)),
  ];
}

/** Any JSON value, indented; strings as they are. */
function valueText(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? String(value);
}

/** The text of a message's content: OpenAI's parts are joined, what is no text is shown as JSON. */
function contentText(content) {
  if (content === null || content === undefined) return "";
  if (!Array.isArray(content)) return valueText(content);
  return content
    .map((part) => (part && typeof part.text === "string" ? part.text : valueText(part)))
    .join("\n");
}
