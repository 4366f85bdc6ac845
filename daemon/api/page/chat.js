"use strict";
// The conversation: it is kept here, goes with each message to the server, and is gone with the tab.

const turns = []; // {role, content}, as the API has them
let running = null; // AbortController of the answer under way
let follows = true; // the end of the conversation is in sight

function beginTurn(role) {
  const turn = make("article", `turn ${role}`), body = make("div", "body");
  turn.append(make("h2", "", role === "user" ? "You" : board.model || "Model"), body);
  $("empty").hidden = true;
  $("log").append(turn);
  return [turn, body];
}

function follow() {
  if (follows) $("log").scrollTop = $("log").scrollHeight;
}

function request() {
  const system = $("system").value.trim();
  const body = {
    model: board.model || undefined,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...turns],
    stream: true,
    stream_options: { include_usage: true },
  };
  if ($("temperature").value) body.temperature = Number($("temperature").value);
  if ($("max-tokens").value) body.max_tokens = Number($("max-tokens").value);
  return body;
}

async function send() {
  const question = $("question").value.trim();
  if (running || !question || !$("fields").reportValidity()) return;
  for (const old of $("log").querySelectorAll(".error")) old.remove();
  const [asked, askedBody] = beginTurn("user");
  askedBody.append(make("p", "text", question));
  $("question").value = "";
  turns.push({ role: "user", content: question });
  const [turn, body] = beginTurn("assistant");
  follows = true;
  follow();
  const answer = new Answer(body);
  const error = await receive(answer, turn);
  if (answer.isEmpty) { // what was not answered may be asked again
    turns.pop();
    asked.remove();
    turn.remove();
    if (!$("question").value) $("question").value = question;
  } else {
    turns.push({ role: "assistant", content: answer.content });
  }
  $("empty").hidden = turns.length > 0;
  if (error) complain(error);
  follow();
  board.refresh();
}

// Shows an answer until it ends; gives the error that ended it, if one did.
async function receive(answer, turn) {
  const clock = new Timing();
  running = new AbortController();
  const { signal } = running;
  busy(turn, true);
  let ended = "", failed = null;
  try {
    for await (const event of server.chat(request(), signal)) {
      clock.take(event);
      for (const choice of event.choices) {
        answer.take(choice.delta);
        if (choice.finish_reason === "length") ended = "cut off at the limit of tokens";
      }
      follow();
    }
  } catch (error) {
    ended = signal.aborted ? "stopped" : "broken off";
    if (!signal.aborted) failed = error;
  }
  answer.end();
  running = null;
  busy(turn, false);
  const line = make("div", "end note");
  line.append(make("span", "", [clock.text, ended].filter(Boolean).join(", ")));
  if (answer.content) line.append(copyButton("Copy this answer", () => answer.content));
  turn.append(line);
  return failed;
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
  if (event.key === "Escape") stop();
});
$("stop").addEventListener("click", () => {
  stop();
  $("question").focus();
});
$("new").addEventListener("click", async () => {
  stop();
  while (running) await new Promise((resolve) => setTimeout(resolve, 10));
  turns.length = 0;
  for (const shown of $("log").querySelectorAll(".turn, .error")) shown.remove();
  $("empty").hidden = false;
  $("question").focus();
});
$("log").addEventListener("scroll", () => {
  const log = $("log");
  follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
});
$("fields").addEventListener("submit", (event) => event.preventDefault());
$("key").addEventListener("change", () => {
  server.key = $("key").value.trim();
  board.refresh();
});
$("key").value = server.key;
$("key-field").hidden = !server.key;
board.refresh();
