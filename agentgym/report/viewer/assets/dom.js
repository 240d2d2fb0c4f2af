// Elements are made here and nowhere else. Text goes in as text nodes, never as markup; the page's
// policy (require-trusted-types-for) refuses innerHTML besides.

const NOTHING = new Set([null, undefined, false]);

/** An element: el("a.quiet", {href: "#"}, "text", child, [more]); functions are event handlers. */
function el(what, props, ...children) {
  const [name, ...classes] = what.split(".");
  const node = document.createElement(name || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(props || {})) {
    if (NOTHING.has(value)) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else if (key === "style") Object.assign(node.style, value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  append(node, children);
  return node;
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (NOTHING.has(child)) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

function replace(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

/** An object's own value: one that is called "constructor" is no function of the language. */
function own(object, name) {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/** A folded part whose content is made when it is first opened. */
function lazyDetails(summary, make, { open = false, kind = "details" } = {}) {
  const details = el(kind, { open }, el("summary", {}, summary));
  const fill = () => {
    if (!details.open) return;
    details.removeEventListener("toggle", fill);
    if (details.children.length === 1) append(details, [make()]);
  };
  details.addEventListener("toggle", fill);
  if (open) fill();
  return details;
}
