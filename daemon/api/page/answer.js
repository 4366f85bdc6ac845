"use strict";
// One answer on the page, as it grows: thoughts and calls are folded, the rest is Markdown.

const THINK = "<think>", THOUGHT = "</think>"; // around what some models say before they answer

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

function button(words, label, action) {
  const made = make("button", "", words);
  made.type = "button";
  made.ariaLabel = label;
  made.addEventListener("click", action);
  return made;
}

function copyButton(label, text) {
  const made = button("Copy", label, async () => {
    made.textContent = (await copy(text())) ? "Copied" : "Not copied";
    setTimeout(() => { made.textContent = "Copy"; }, 1500);
  });
  return made;
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
    this.content = ""; // the whole text, thoughts included, as the model gets it later
    this.body = body;
    this.held = ""; // perhaps the beginning of a mark
    this.stage = "start"; // start | thinking | saying
    this.said = ""; // without thoughts
    this.markdown = null; // shows it
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

  // Resolves once all is shown.
  async end() {
    if (this.stage === "thinking") this.think(this.held);
    else if (this.held) this.write(this.held);
    this.held = "";
    await this.markdown?.end();
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

  write(text) {
    if (!text) return;
    this.markdown ||= new Markdown(this.body.appendChild(make("div", "said")));
    this.said += text;
    this.markdown.set(this.said);
  }
}
