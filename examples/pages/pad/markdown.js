// @ts-check
/** Turns Markdown into elements: headings, lists, quotes, code, emphasis, links. All else, even HTML, stays text. */

const FENCE = /^```/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^\s*[-*+]\s+(.*)$/;
const NUMBER = /^\s*\d{1,9}[.)]\s+(.*)$/;
const QUOTE = /^>\s?(.*)$/;
const RULE = /^(-{3,}|\*{3,})\s*$/;
// Code comes first, as nothing inside of it is Markdown.
const INLINE = /`([^`]+)`|\*\*(?=\S)(.+?)\*\*(?!\*)|\*(?=\S)(.+?)\*|\[([^\][]+)\]\(([^\s()]+)\)/;
const SAFE = ["http:", "https:", "mailto:"];

/** Return the elements of a text in Markdown. @param {string} text */
export function renderMarkdown(text) {
  const lines = text.split("\n");
  const page = document.createDocumentFragment();
  while (lines.length) page.append(...block(lines));
  return page;
}

/** Take one block from the lines. @param {string[]} lines @returns {HTMLElement[]} */
function block(lines) {
  const line = lines[0];
  if (FENCE.test(line)) return [codeBlock(lines)];
  const heading = HEADING.exec(line);
  if (heading) {
    lines.shift();
    // The page has headings of its own, so these begin two levels lower.
    return [element(`h${Math.min(heading[1].length + 2, 6)}`, inline(heading[2]))];
  }
  if (RULE.test(line)) {
    lines.shift();
    return [element("hr", [])];
  }
  for (const [pattern, name] of /** @type {const} */ ([[BULLET, "ul"], [NUMBER, "ol"]])) {
    const items = takeMatches(lines, pattern);
    if (items.length) return [element(name, items.map((item) => element("li", inline(item))))];
  }
  const quoted = takeMatches(lines, QUOTE);
  if (quoted.length) return [element("blockquote", [paragraph(quoted)])];
  const rest = [];
  while (lines.length && lines[0].trim() && (!rest.length || !isSpecial(lines[0]))) rest.push(lines.shift() ?? "");
  if (rest.length) return [paragraph(rest)];
  lines.shift();
  return [];
}

/** @param {string} line */
function isSpecial(line) {
  return [FENCE, HEADING, BULLET, NUMBER, QUOTE, RULE].some((pattern) => pattern.test(line));
}

/** @param {string[]} lines */
function codeBlock(lines) {
  lines.shift();
  const code = [];
  while (lines.length && !FENCE.test(lines[0])) code.push(lines.shift());
  lines.shift();
  return element("pre", [element("code", [code.join("\n")])]);
}

/** Take the lines at the start that match. @param {string[]} lines @param {RegExp} pattern @returns {string[]} */
function takeMatches(lines, pattern) {
  const found = [];
  for (let match; lines.length && (match = pattern.exec(lines[0])); lines.shift()) found.push(match[1]);
  return found;
}

/** @param {string[]} lines */
function paragraph(lines) {
  return element("p", inline(lines.join("\n")));
}

/** @param {string} text @returns {(Node | string)[]} */
function inline(text) {
  const parts = [];
  let rest = text;
  for (let match; (match = INLINE.exec(rest)); rest = rest.slice(match.index + match[0].length)) {
    parts.push(rest.slice(0, match.index), inlineElement(match));
  }
  return [...parts, rest];
}

/** @param {RegExpExecArray} match */
function inlineElement([all, code, strong, emphasis, label, url]) {
  if (code) return element("code", [code]);
  if (strong) return element("strong", inline(strong));
  if (emphasis) return element("em", inline(emphasis));
  if (!URL.canParse(url) || !SAFE.includes(new URL(url).protocol)) return all;
  const link = /** @type {HTMLAnchorElement} */ (element("a", inline(label)));
  Object.assign(link, { href: url, target: "_blank", rel: "noopener noreferrer nofollow" });
  return link;
}

/** @param {string} name @param {(Node | string)[]} children */
function element(name, children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}
