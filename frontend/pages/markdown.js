// Markdown to DOM nodes. The text is a model's, so it is hostile: it only ever becomes text nodes of the elements made
// here, links lead to http and https alone, and images are named, never loaded.
import { codeBlock, element } from "./common.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/s;
const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(.*)$/s;
const ROW = /^ *\|(.*)\| *$/;
const INLINE = new RegExp(
  [
    /`([^`\n]{1,2000})`/, // 1: code
    /\*\*(?=\S)([^*\n]{1,2000})\*\*/, // 2: strong
    /\*(?=\S)([^*\n]{1,2000})\*/, // 3: emphasis
    /(!?)\[([^\]\n]{0,500})\]\(([^()\s]{1,2000})\)/, // 4, 5, 6: an image or a link
    /(https?:\/\/[^\s<>"'`)\]]{1,2000})/, // 7: an address
  ]
    .map((each) => each.source)
    .join("|"),
  "g",
);

/** Returns a link to an address of http or https, else its text. */
function link(address, text) {
  const url = URL.canParse(address) ? new URL(address) : undefined;
  if (!["http:", "https:"].includes(url?.protocol)) return text;
  return element("a", { href: url.href, rel: "noopener noreferrer nofollow", target: "_blank", textContent: text });
}

function inline(text, depth = 0) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, strong, emphasis, mark, label, address, bare] = match;
    nodes.push(text.slice(end, match.index));
    end = match.index + whole.length;
    if (code !== undefined) nodes.push(element("code", { textContent: code }));
    else if (depth > 3) nodes.push(whole);
    else if (strong !== undefined) nodes.push(element("strong", {}, ...inline(strong, depth + 1)));
    else if (emphasis !== undefined) nodes.push(element("em", {}, ...inline(emphasis, depth + 1)));
    else if (bare !== undefined) nodes.push(link(bare, bare));
    else nodes.push(link(address, mark ? `Image: ${label || address}` : label || address));
  }
  nodes.push(text.slice(end));
  return nodes;
}

const cells = (line, tag) =>
  ROW.exec(line)[1].split("|").map((text) => element(tag, {}, ...inline(text.trim())));

/** Returns the nodes of a text. */
export function blocks(text, depth = 0) {
  const lines = text.split("\n").reverse(); // taken from the end, which takes no time for the others
  const nodes = [];
  while (lines.length) {
    const line = lines.pop();
    const [, mark, language] = FENCE.exec(line) ?? [];
    const heading = /^(#{1,6}) +(.*)$/s.exec(line);
    const takeWhile = (isPart) => {
      const taken = [line];
      while (lines.length && isPart(lines.at(-1))) taken.push(lines.pop());
      return taken;
    };
    if (!line.trim()) continue;
    if (mark) {
      const [, ...body] = takeWhile((next) => !next.trim().startsWith(mark));
      lines.pop();
      nodes.push(codeBlock(language.trim() || "text", body.join("\n")));
    } else if (heading) {
      nodes.push(element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])));
    } else if (/^ *([-*_])( *\1){2,} *$/.test(line)) {
      nodes.push(element("hr"));
    } else if (line.startsWith(">") && depth < 8) {
      const quoted = takeWhile((next) => next.startsWith(">")).map((each) => each.replace(/^> ?/, ""));
      nodes.push(element("blockquote", {}, ...blocks(quoted.join("\n"), depth + 1)));
    } else if (ITEM.test(line) && depth < 8) {
      nodes.push(list(takeWhile((next) => ITEM.test(next) || /^ {2,}\S/.test(next)), depth));
    } else if (ROW.test(line) && /^[ |:-]+$/.test(lines.at(-1) ?? "") && ROW.test(lines.at(-1))) {
      const [head, , ...rows] = takeWhile((next) => ROW.test(next));
      const body = rows.map((row) => element("tr", {}, ...cells(row, "td")));
      nodes.push(element("table", {}, element("tr", {}, ...cells(head, "th")), ...body));
    } else {
      const isText = (next) => next.trim() && !FENCE.test(next) && !/^(#{1,6} |>)/.test(next) && !ITEM.test(next);
      nodes.push(element("p", {}, ...inline(takeWhile(isText).join("\n"))));
    }
  }
  return nodes;
}

function list(lines, depth) {
  const [, indent, first] = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const [, space, , text] = ITEM.exec(line) ?? [];
    if (text !== undefined && space.length <= indent.length) items.push([text]);
    else items.at(-1).push(line.slice(Math.min(indent.length + 2, line.search(/\S/))));
  }
  const nodes = items.map(([head, ...rest]) =>
    element("li", {}, ...inline(head), ...blocks(rest.join("\n"), depth + 1)),
  );
  return Number.isNaN(parseInt(first)) ? element("ul", {}, ...nodes) : element("ol", { start: parseInt(first) }, ...nodes);
}

/** A text that grows: whole blocks become nodes once, and only the unfinished one is plain text. */
export class GrowingText {
  constructor(parent) {
    this.parent = parent;
    this.tail = document.createTextNode("");
    parent.append(element("p", { className: "tail" }, this.tail));
    this.scanned = 0; // characters of the tail in whole lines that have been looked at
    this.fence = ""; // the mark of the open block of code
  }

  add(text) {
    this.tail.appendData(text);
    const data = this.tail.data;
    let cut = 0;
    for (let end; (end = data.indexOf("\n", this.scanned)) >= 0; this.scanned = end + 1) {
      const line = data.slice(this.scanned, end);
      const mark = FENCE.exec(line)?.[1];
      if (this.fence ? line.trim().startsWith(this.fence) : mark) this.fence = this.fence ? "" : mark;
      else if (!this.fence && !line.trim()) cut = end + 1;
    }
    if (cut) this.#settle(cut);
  }

  end() {
    this.#settle(this.tail.data.length);
    this.tail.parentNode.remove();
  }

  #settle(cut) {
    this.tail.parentNode.before(...blocks(this.tail.data.slice(0, cut)));
    this.tail.deleteData(0, cut);
    this.scanned = Math.max(0, this.scanned - cut);
  }
}
