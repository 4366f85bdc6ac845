"use strict";
// One answer on the page, as it grows. What a model says becomes text nodes and nothing else.

const THINK = "<think>", THOUGHT = "</think>"; // around what some models say before they answer

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

function copyButton(label, text) {
  const button = make("button", "", "Copy");
  button.type = "button";
  button.ariaLabel = label;
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text())) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = make("textarea"); // a page that came over plain HTTP has no clipboard
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  return done;
}

class Answer {
  constructor(body) {
    this.content = ""; // all that was said, thoughts included: what the model is told of it later
    this.body = body;
    this.held = ""; // perhaps the beginning of a mark
    this.stage = "start"; // start | thinking | saying
    this.line = ""; // a line that may yet become a fence
    this.lineIsNew = true;
    this.fence = ""; // of the code block that is open
    this.node = null; // the text node that grows
    this.folds = new Map();
  }

  get isEmpty() { return !this.content && !this.folds.size; }

  take(delta) {
    const thought = delta.reasoning_content || delta.reasoning;
    if (thought) this.think(thought);
    for (const piece of delta.tool_calls || []) this.call(piece);
    if (delta.content) {
      this.content += delta.content;
      this.say(delta.content);
    }
  }

  end() {
    if (this.stage === "thinking") this.think(this.held);
    else if (this.held) this.write(this.held);
    if (this.line && !this.closes(this.line)) this.append(this.line);
    this.held = this.line = "";
  }

  think(text) {
    const node = this.fold("thoughts", "Reasoning");
    node.appendData(node.length ? text : text.trimStart());
  }

  call(piece) {
    const index = piece.index || 0, made = piece.function || {};
    const node = this.fold(`call ${index}`, `Call of ${made.name || "a function"}`);
    if (made.arguments) node.appendData(made.arguments);
  }

  // The text node of a part that is shown folded.
  fold(name, title) {
    if (!this.folds.has(name)) {
      const details = make("details", "fold"), text = make("p", "text");
      details.append(make("summary", "", title), text);
      this.body.append(details);
      this.node = null;
      this.folds.set(name, text.appendChild(document.createTextNode("")));
    }
    return this.folds.get(name);
  }

  say(text) {
    this.held += text;
    if (this.stage === "start") {
      const begun = this.held.trimStart();
      if (begun.length < THINK.length && THINK.startsWith(begun)) return;
      this.stage = begun.startsWith(THINK) ? "thinking" : "saying";
      if (this.stage === "thinking") this.held = begun.slice(THINK.length);
    }
    if (this.stage === "thinking") {
      const end = this.held.indexOf(THOUGHT);
      const sure = end < 0 ? Math.max(0, this.held.length - THOUGHT.length + 1) : end;
      this.think(this.held.slice(0, sure));
      this.held = this.held.slice(sure);
      if (end < 0) return;
      this.held = this.held.slice(THOUGHT.length);
      this.stage = "saying";
    }
    this.write(this.held);
    this.held = "";
  }

  // Text as it is, but for fenced code, which gets a block of its own.
  write(text) {
    this.line += text;
    while (this.line) {
      const end = this.line.indexOf("\n");
      const whole = end < 0 ? this.line : this.line.slice(0, end);
      if (this.lineIsNew && end < 0 && /^[ \t]*(`{0,2}|`{3,}[^`]*)$/.test(whole)) return;
      const opened = this.lineIsNew && !this.fence && /^[ \t]*(`{3,})([^`]*)$/.exec(whole);
      if (opened) this.open(opened[1], opened[2].trim());
      else if (this.lineIsNew && this.closes(whole)) this.fence = "", this.node = null;
      else this.append(end < 0 ? whole : `${whole}\n`);
      this.lineIsNew = end >= 0;
      this.line = end < 0 ? "" : this.line.slice(end + 1);
    }
  }

  closes(line) {
    const found = this.fence && /^[ \t]*(`{3,})[ \t]*$/.exec(line);
    return Boolean(found && found[1].length >= this.fence.length);
  }

  open(fence, language) {
    const block = make("div", "code"), bar = make("div", "bar"), pre = make("pre");
    const code = pre.appendChild(make("code"));
    if (this.node) this.node.data = this.node.data.trimEnd();
    pre.tabIndex = 0; // so that keys can scroll it
    this.node = code.appendChild(document.createTextNode(""));
    bar.append(make("span", "", language || "code"), copyButton("Copy this code", () => code.textContent));
    block.append(bar, pre);
    this.body.append(block);
    this.fence = fence;
  }

  append(text) {
    if (!this.node) {
      text = text.replace(/^\n+/, "");
      if (!text) return;
      this.node = this.body.appendChild(make("p", "text")).appendChild(document.createTextNode(""));
    }
    this.node.appendData(text);
  }
}
