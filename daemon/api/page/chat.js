"use strict";
// The conversation: it goes with each message to the server, and is kept in this browser.

const SAVE_MS = 3000; // between two times that an answer under way is kept

let current = fresh(); // {id, title, changed, turns}
let turns = current.turns; // {role, content, note}; role and content as the API has them
let running = null; // AbortController of the answer under way
let partial = null; // the Answer under way
let follows = true; // the end of the conversation is in sight

function fresh() {
  const id = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return { id, title: "", changed: 0, turns: [] };
}

// While an answer is running: not before it has begun, or the answer that it replaces would be lost.
function save() {
  if (!turns.length || (running && !partial.content)) return;
  const under = partial?.content ? [{ role: "assistant", content: partial.content, note: "broken off" }] : [];
  current.title ||= chats.titleOf(turns[0].content);
  current.changed = Date.now();
  const isKept = chats.save({ ...current, turns: [...turns, ...under] });
  $("not-kept").hidden = isKept;
  shelf.show();
}

// The element of a turn, and where its text goes.
function beginTurn(role) {
  const turn = make("article", `turn ${role}`), body = make("div", "body");
  turn.append(make("h2", "", role === "user" ? "You" : board.model || "Model"), body);
  $("empty").hidden = true;
  $("log").append(turn);
  return [turn, body];
}

function showQuestion(content) {
  const [turn, body] = beginTurn("user"), tools = make("div", "tools note");
  body.append(make("p", "text", content));
  tools.append(button("Edit", "Edit this message", () => edit(turn, content)), copyButton("Copy this message", () => content));
  turn.append(tools);
}

// A kept answer.
async function showAnswer({ content, note }) {
  const [turn, body] = beginTurn("assistant"), answer = new Answer(body);
  endTurn(turn, content, note || "");
  answer.take({ content });
  await answer.end();
}

function endTurn(turn, content, note) {
  const line = make("div", "end note");
  line.append(make("span", "", note));
  const again = button("Regenerate", "Answer this again", regenerate);
  again.className = "again";
  if (content) line.append(copyButton("Copy this answer", () => content));
  line.append(again);
  turn.append(line);
}

function follow() {
  if (follows) $("log").scrollTop = $("log").scrollHeight;
}

function request() {
  const system = $("system").value.trim();
  const said = turns.map(({ role, content }) => ({ role, content }));
  const body = {
    model: board.model || undefined,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...said],
    stream: true,
    stream_options: { include_usage: true },
  };
  if ($("temperature").value) body.temperature = Number($("temperature").value);
  if ($("max-tokens").value) body.max_tokens = Number($("max-tokens").value);
  return body;
}

function send() {
  const question = $("question").value.trim();
  if (!question || !mayAsk()) return;
  $("question").value = "";
  converse(turns.length, question, () => {
    if (!$("question").value) $("question").value = question;
  });
}

function regenerate() {
  if (turns.at(-1)?.role === "assistant" && mayAsk()) converse(turns.length - 2, turns.at(-2).content, () => {});
}

// A message becomes a field; sending from there replaces it and all that followed.
function edit(turn, content) {
  const field = make("textarea"), line = make("div", "tools");
  const end = () => { field.remove(); line.remove(); turn.classList.remove("edited"); };
  const sendEdited = () => {
    const question = field.value.trim(), place = [...document.querySelectorAll(".turn")].indexOf(turn);
    if (!question || !mayAsk()) return;
    end();
    converse(place, question, () => edit(turn, question));
  };
  if (turn.classList.contains("edited")) return;
  turn.classList.add("edited");
  field.value = content;
  field.ariaLabel = "The message";
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    sendEdited();
  });
  line.append(button("Send", "Send the changed message", sendEdited), button("Cancel", "Leave it as it was", end));
  turn.append(field, line);
  field.focus();
}

function mayAsk() {
  return !running && $("fields").reportValidity();
}

// Has a question answered after the first `numKept` turns. Later ones are gone once there is an answer; without
// one all is as before, and `failed` is called.
async function converse(numKept, question, failed) {
  for (const old of $("log").querySelectorAll(".error")) old.remove();
  const chat = current, before = turns.splice(numKept);
  const removed = [...document.querySelectorAll(".turn")].slice(numKept);
  for (const old of removed) old.remove();
  showQuestion(question);
  turns.push({ role: "user", content: question });
  const [turn, body] = beginTurn("assistant");
  follows = true;
  follow();
  const answer = new Answer(body);
  const [note, error] = await receive(answer, turn);
  if (answer.isEmpty) { // an unanswered question may be asked again
    for (const made of [...document.querySelectorAll(".turn")].slice(numKept)) made.remove();
    $("log").append(...removed);
    turns.splice(numKept, Infinity, ...before);
    failed();
  } else {
    endTurn(turn, answer.content, note);
    turns.push({ role: "assistant", content: answer.content, note });
    if (chat === current) save();
  }
  $("empty").hidden = turns.length > 0;
  if (error) complain(error);
  follow();
  board.refresh();
}

// Shows an answer until it ends; gives what is said below it, and the error that ended it.
async function receive(answer, turn) {
  const clock = new Timing(), saving = setInterval(save, SAVE_MS);
  running = new AbortController();
  partial = answer;
  const { signal } = running;
  busy(turn, true);
  let ended = "", failed = null;
  try {
    for await (const event of server.chat(request(), signal)) {
      clock.take(event);
      for (const choice of event.choices) {
        answer.take(choice.delta);
        if (choice.finish_reason === "length") ended = "cut off at the limit of tokens";
        if (choice.stop_reason === "repetition") ended = "ended, since it repeated itself";
      }
      follow();
    }
  } catch (error) {
    ended = signal.aborted ? "stopped" : "broken off";
    if (!signal.aborted) failed = error;
  }
  await answer.end();
  clearInterval(saving);
  running = partial = null;
  busy(turn, false);
  return [[clock.text, ended].filter(Boolean).join(", "), failed];
}

class Timing {
  constructor() {
    this.askedMs = performance.now();
    this.firstMs = this.lastMs = this.pieces = 0;
    this.tokens = null; // until the server says how many there were
  }

  take(event) {
    if (event.usage) this.tokens = event.usage.completion_tokens;
    const delta = event.choices[0]?.delta || {};
    if (!(delta.content || delta.reasoning_content || delta.reasoning || delta.tool_calls)) return;
    this.lastMs = performance.now();
    this.firstMs ||= this.lastMs;
    this.pieces++;
  }

  // A piece is a token, but for letters of several: without the server's count it is about that.
  get text() {
    if (!this.firstMs) return "no tokens";
    const tokens = this.tokens ?? this.pieces, about = this.tokens === null ? "about " : "";
    const said = [`${about}${tokens} ${tokens === 1 ? "token" : "tokens"}`];
    said.push(`first after ${((this.firstMs - this.askedMs) / 1000).toFixed(2)} s`);
    const seconds = (this.lastMs - this.firstMs) / 1000;
    if (tokens > 1 && seconds > 0) said.push(`then ${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    return said.join(", ");
  }
}

function busy(turn, isBusy) {
  turn.classList.toggle("busy", isBusy);
  document.body.classList.toggle("answering", isBusy); // nothing else can be asked meanwhile
  $("log").ariaBusy = String(isBusy); // a screen reader reads the whole answer, not each piece
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
}

function complain(error) {
  const line = make("p", "error", error instanceof Refusal ? error.words : String(error));
  line.role = "alert";
  $("log").append(line);
  if (error.status === 401) wantKey();
}

function stop() {
  running?.abort();
}

async function stopped() {
  stop();
  while (running) await sleep(10);
}

// Ends the running answer, and shows another chat.
async function openChat(id) {
  await stopped();
  current = (id && chats.get(id)) || fresh();
  turns = current.turns;
  for (const shown of $("log").querySelectorAll(".turn, .error")) shown.remove();
  $("empty").hidden = turns.length > 0;
  $("not-kept").hidden = true;
  shelf.toggle(false);
  shelf.show();
  const shown = turns.map((turn) => (turn.role === "user" ? showQuestion(turn.content) : showAnswer(turn)));
  $("question").focus();
  follows = true;
  await Promise.all(shown);
  follow();
}

function renameChat(id, title) {
  chats.rename(id, title);
  if (id === current.id) current.title = chats.get(id)?.title || current.title;
}

async function removeChat(id) {
  if (id === current.id) await stopped();
  chats.remove(id);
  if (id === current.id) await openChat("");
  else shelf.show();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (document.body.classList.contains("shelf-open")) shelf.toggle(false);
  else stop();
});
$("stop").addEventListener("click", () => {
  stop();
  $("question").focus();
});
$("new").addEventListener("click", () => openChat(""));
$("menu").addEventListener("click", () => shelf.toggle(!document.body.classList.contains("shelf-open")));
$("shade").addEventListener("click", () => shelf.toggle(false));
$("log").addEventListener("scroll", () => {
  const log = $("log");
  follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
});
$("fields").addEventListener("submit", (event) => event.preventDefault());
$("key").addEventListener("change", () => {
  server.key = $("key").value.trim();
  board.refresh();
});
$("keep").addEventListener("change", () => {
  const keeps = $("keep").checked;
  if (!keeps && chats.list().length && !confirm("Delete all chats that this browser keeps?")) $("keep").checked = true;
  else chats.keeps = keeps;
  if (keeps) save();
  shelf.show();
});
addEventListener("pagehide", () => { if (running) save(); });
addEventListener("storage", () => {
  $("keep").checked = chats.keeps;
  shelf.show();
});
$("key").value = server.key;
$("key-field").hidden = !server.key;
$("keep").checked = chats.keeps;
shelf.show();
board.refresh();
