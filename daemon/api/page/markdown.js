"use strict";
// A text in Markdown, as it grows. The server says which elements it has; only those here are made.

const RENDER_MS = 100; // between two looks at a text that grows; more where they take long
const MOST_MS = 1000; // between two renderings, however long they take
const PLAIN_MS = 700; // a text that is not rendered by then is shown as it is
const RENDER_MOST = 64 * 1024; // letters that the server takes at once
const TAGS = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br",
  "table", "thead", "tbody", "tr", "th", "td", "em", "strong", "s", "code"]);
const SAFE = /^(https?|mailto):/i; // schemes of links

function nodeOf(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const [tag, attributes, children] = node;
  if (tag === "pre") return codeBlock(attributes.language, children.join(""));
  const element = make(TAGS.has(tag) ? tag : "span");
  element.append(...children.map(nodeOf));
  if (tag === "ol" && attributes.start) element.start = Number(attributes.start);
  if (["left", "center", "right"].includes(attributes.align)) element.classList.add(attributes.align);
  if (tag === "a") return linkTo(attributes.href, element);
  if (tag !== "table") return element;
  const wide = make("div", "wide-table");
  wide.tabIndex = 0; // so that keys can scroll it
  wide.append(element);
  return wide;
}

function linkTo(address, words) {
  if (!SAFE.test(address || "")) return words;
  const link = make("a");
  link.href = address;
  link.rel = "noopener noreferrer nofollow";
  link.target = "_blank";
  link.append(...words.childNodes);
  return link;
}

function codeBlock(language, text) {
  const block = make("div", "code"), bar = make("div", "bar"), pre = make("pre");
  const code = pre.appendChild(make("code"));
  code.append(document.createTextNode(text));
  pre.tabIndex = 0;
  bar.append(make("span", "", language || "code"), copyButton("Copy this code", () => code.textContent));
  block.append(bar, pre);
  return block;
}

class Markdown {
  constructor(box) {
    this.box = box;
    this.text = "";
    this.shown = []; // {json, element} of each block
    this.numFinal = 0; // of them, those that stay
    this.begin = 0; // where in the text the others begin
    this.rendered = ""; // the text that is shown
    this.plain = null; // the text that could not be rendered, as it is
    this.waitMs = 0;
    this.running = null; // the promise of a rendering under way
    this.ended = false;
  }

  set(text) {
    this.text = text.replace(/\r\n?/g, "\n");
    if (!this.running) this.running = this.run();
  }

  // Shows the whole text. Blocks made from parts are made again: a reference may stand at the end.
  async end() {
    this.ended = true;
    await this.running;
    if (this.text.length <= RENDER_MOST) this.begin = this.numFinal = 0;
    if (this.text) await this.render();
  }

  async run() {
    await sleep(0); // a complete text is rendered once, by `end`
    while (!this.ended && this.rendered !== this.text) {
      await this.render();
      follow();
      for (let ms = 0; ms < this.waitMs && !this.ended; ms += RENDER_MS) await sleep(RENDER_MS);
    }
    this.running = null;
  }

  async render() {
    const text = this.text, begin = this.begin, began = performance.now();
    const late = setTimeout(() => this.showPlain(text.slice(begin)), PLAIN_MS);
    try {
      if (text.length - begin > RENDER_MOST) throw new Refusal(400);
      const said = await server.markdown(text.slice(begin));
      clearTimeout(late);
      this.take(said, text.slice(begin));
      this.waitMs = Math.min(MOST_MS, Math.max(RENDER_MS, 4 * (performance.now() - began)));
    } catch {
      this.showPlain(text.slice(begin));
      this.waitMs = 20 * RENDER_MS;
    } finally {
      clearTimeout(late);
    }
    this.rendered = text;
  }

  take(said, text) {
    this.plain?.remove();
    this.plain = null;
    said.blocks.forEach((block, index) => this.put(this.numFinal + index, block));
    for (const old of this.shown.splice(this.numFinal + said.blocks.length)) old.element.remove();
    this.numFinal += said.num_final;
    let at = 0;
    for (let line = 0; line < said.line; line++) at = text.indexOf("\n", at) + 1;
    this.begin += at;
  }

  // Unchanged nodes stay, with selection and scrolling; code that grows only gets more text.
  put(index, block) {
    const json = JSON.stringify(block), old = this.shown[index];
    if (old?.json === json) return;
    const grows = old && block[0] === "pre" && old.block[0] === "pre" && old.block[1].language === block[1].language;
    if (grows) {
      const node = old.element.querySelector("code").firstChild, text = block[2].join("");
      if (text.startsWith(node.data)) node.appendData(text.slice(node.length));
      else node.data = text;
      this.shown[index] = { json, block, element: old.element };
      return;
    }
    const element = nodeOf(block);
    if (old) old.element.replaceWith(element);
    else this.box.append(element);
    this.shown[index] = { json, block, element };
  }

  showPlain(text) {
    for (const old of this.shown.splice(this.numFinal)) old.element.remove();
    this.plain ||= this.box.appendChild(make("p", "text"));
    this.plain.textContent = text;
  }
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
