"use strict";
// All requests to the server, and the meaning of its refusals.

const KEY = "llmd.key"; // in sessionStorage: gone with the tab

class Refusal extends Error {
  // status 0: the server did not answer, or broke off; 200: it failed within a stream.
  constructor(status, detail = {}, waitS = 0) {
    super(detail.message || `the server answered ${status}`);
    this.status = status;
    this.code = detail.code || "";
    this.waitS = waitS;
  }

  get words() {
    const again = this.waitS ? `in about ${this.waitS} s` : "in a moment";
    const said = this.message.replace(/\.$/, "");
    switch (this.code) {
      case "missing_api_key": return "This server wants an API key. Enter it in the settings.";
      case "invalid_api_key": return "This API key is not valid here. Enter another one in the settings.";
      case "queue_full": return `The server is full. It expects to have a place ${again}; send the message again then.`;
      case "quota_exceeded": return `The quota of this API key is used up. Send the message again ${again}.`;
      case "too_many_running": return `This API key has as many answers under way as it may have. Send the message again ${again}.`;
      case "draining": return "The server is shutting down and takes no more messages.";
      case "context_length_exceeded":
        return `This is too long for the model: ${said}. Begin a new chat, shorten the message, or ask for fewer tokens.`;
      case "origin_not_allowed": return `The server takes no messages from a page at this address: ${said}.`;
    }
    if (this.status === 0) return `The server cannot be reached: ${said}. Is it still running?`;
    if (this.status === 429 || this.status === 503) return `${sentence(said)} Send the message again ${again}.`;
    return sentence(said);
  }
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + ".";
}

const server = {
  get key() { return sessionStorage.getItem(KEY) || ""; },
  set key(text) { text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY); },

  async status() {
    const response = await this.ask("status", { signal: AbortSignal.timeout(10000) });
    return response.json();
  },

  // The events of one chat completion, as objects. Throws Refusal, and AbortError once it is stopped.
  async *chat(body, signal) {
    const response = await this.ask("v1/chat/completions", {
      method: "POST", body: JSON.stringify(body), signal,
      headers: { "Content-Type": "application/json" },
    });
    for await (const data of events(response.body, signal)) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(200, event.error);
      yield event;
    }
    throw new Refusal(0, { message: "the answer was broken off" });
  },

  // A text's blocks: a `RenderedMarkdown`. Throws Refusal.
  async markdown(text) {
    const response = await this.ask("page/markdown", {
      method: "POST", body: JSON.stringify({ text }), signal: AbortSignal.timeout(10000),
      headers: { "Content-Type": "application/json" },
    });
    return response.json();
  },

  async ask(path, request) {
    const headers = { ...request.headers };
    if (/[^\x21-\x7e]/.test(this.key)) throw new Refusal(401, { code: "invalid_api_key" }); // no header takes it
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    let response;
    try {
      // The key is in a header; a browser's own credentials are none of llmd's.
      response = await fetch(path, { ...request, headers, credentials: "omit", redirect: "error" });
    } catch (error) {
      if (request.signal.aborted && error.name === "AbortError") throw error;
      throw new Refusal(0, { message: "it does not answer" });
    }
    if (response.ok) return response;
    const detail = await response.json().then((said) => said.error, () => ({}));
    throw new Refusal(response.status, detail, Number(response.headers.get("Retry-After")) || 0);
  },
};

async function* events(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Refusal(0, { message: "the connection broke" });
    }
    if (piece.done) return;
    const lines = (rest + piece.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ")) yield line.slice(6).trimEnd();
    }
  }
}
